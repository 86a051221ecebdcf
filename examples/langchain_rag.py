"""Questions over documents in LangChain: coinkv retrieves, and coinkv's chat model answers.

    python examples/langchain_rag.py [--docs FOLDER] [--index DIR] [--model M] [QUESTION ...]

Needs `pip install 'coinkv[langchain]'`. Without --docs it reads the documents of `coinkv demo`.
Retriever and chat model share one model in memory; nothing is sent anywhere or downloaded.
"""

# ruff: noqa: T201

from __future__ import annotations

import argparse
from importlib.resources import as_file, files
from pathlib import Path

from langchain_core.documents import Document
from langchain_core.messages import BaseMessage, BaseMessageChunk
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnablePassthrough

from coinkv import BuildOptions, Index, KVBoost
from coinkv.integrations.langchain import CoinKVChatModel, CoinKVRetriever

QUESTIONS = ["In what year was WABOT-1 completed?", "When was the robot WABOT-1 completed?"]
PROMPT = ChatPromptTemplate.from_messages(
    [
        ("system", "Answer the question from the passages, in a few words."),
        ("user", "Passages:\n{passages}\n\nQuestion: {question}"),
    ]
)


def chain_of(retriever: CoinKVRetriever, chat: CoinKVChatModel) -> Runnable[str, BaseMessage]:
    """Question in, answer out."""
    asked = {"passages": retriever | joined, "question": RunnablePassthrough()}
    return asked | PROMPT | chat


def joined(documents: list[Document]) -> str:
    """The retrieved nuggets, each behind the title of its document."""
    return "\n".join(f"{each.metadata['title']}: {each.page_content}" for each in documents)


def tell(chain: Runnable[str, BaseMessage], question: str) -> None:
    """Print an answer as it is decoded, and what its prompt cost."""
    print(f"\n> {question}")
    answer: BaseMessageChunk | None = None
    for chunk in chain.stream(question):
        print(chunk.content, end="", flush=True)
        answer = chunk if answer is None else answer + chunk
    usage, facts = answer.usage_metadata, answer.response_metadata
    print(
        f"\n  {usage['input_tokens']} tokens read, {usage['input_token_details']['cache_read']} of "
        f"them reused; first token after {facts['ttft_ms']:.0f} ms"
    )


def main() -> None:
    """Index the documents, then answer every question."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("questions", nargs="*", metavar="QUESTION", default=QUESTIONS)
    parser.add_argument("--docs", type=Path, help="documents; by default those of coinkv demo")
    parser.add_argument("--index", type=Path, default=Path("demo-index"), help="index folder")
    parser.add_argument("--model", help="hub name or folder; by default the embedded model")
    given = parser.parse_args()
    with as_file(files("coinkv.cli") / "demo_data" / "docs") as demo:
        index = Index.build(given.docs or demo, given.index, BuildOptions(model=given.model))
    with KVBoost.from_pretrained(index.backbone, budget_bytes=1_000_000_000) as engine:
        chat = CoinKVChatModel(engine=engine, max_tokens=48)
        chain = chain_of(CoinKVRetriever(index=index), chat)
        for question in given.questions:
            tell(chain, question)


if __name__ == "__main__":
    main()
