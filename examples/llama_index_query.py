"""Questions over documents in LlamaIndex: coinkv is the query engine, and streams its answer.

    python examples/llama_index_query.py [--docs FOLDER] [--index DIR] [--model M] [QUESTION ...]

Needs `pip install 'coinkv[llama-index]'`. Without --docs it reads the documents of `coinkv demo`.
LlamaIndex's own default models are never asked for; nothing is sent anywhere or downloaded.
"""

# ruff: noqa: T201

from __future__ import annotations

import argparse
from importlib.resources import as_file, files
from pathlib import Path

from llama_index.core.base.base_query_engine import BaseQueryEngine

from coinkv import BuildOptions, CoinRAG, Index
from coinkv.integrations.llama_index import CoinKVQueryEngine

QUESTIONS = ["In what year was WABOT-1 completed?", "Who popularized the term droid?"]


def tell(engine: BaseQueryEngine, question: str) -> None:
    """Print an answer as it is decoded, what it stands on, and where its time went."""
    print(f"\n> {question}")
    response = engine.query(question)
    for piece in response.response_gen:
        print(piece, end="", flush=True)
    print()
    for source in response.source_nodes[:3]:
        place = (
            f"{source.metadata['document']} [{source.metadata['start']}:{source.metadata['end']}]"
        )
        print(f"  {source.score:.2f} {place} {source.text}")
    stages = ", ".join(f"{stage} {ms:.0f}" for stage, ms in response.metadata["stages_ms"].items())
    print(f"  first token after {response.metadata['ttft_ms']:.0f} ms ({stages})")


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
    engine = CoinKVQueryEngine(CoinRAG(index), streaming=True)
    for question in given.questions:
        tell(engine, question)


if __name__ == "__main__":
    main()
