"""The official OpenAI client against `coinkv serve`: a streamed answer, its evidence, a follow-up.

    coinkv serve --docs FOLDER          # in another terminal
    python examples/openai_client.py [--url URL] [--model coinrag/NAME] [QUESTION FOLLOW_UP ...]

Needs `pip install openai`. The API key, where the server wants one, is read from OPENAI_API_KEY.
"""

# ruff: noqa: T201

from __future__ import annotations

import argparse
import os

from openai import OpenAI

QUESTIONS = ["In what year was WABOT-1 completed?", "Which university completed it?"]


def tell(client: OpenAI, model: str, messages: list[dict[str, str]]) -> str:
    """Print the answer to the last message as it comes, then where each part of it stands."""
    print(f"\n> {messages[-1]['content']}")
    answer, annotations, facts, reused = "", [], {}, 0
    with client.chat.completions.create(
        model=model,
        messages=messages,
        max_tokens=64,
        stream=True,
        stream_options={"include_usage": True},
    ) as chunks:
        for chunk in chunks:
            facts = getattr(chunk, "coinkv", None) or facts
            if chunk.usage is not None:
                reused = chunk.usage.prompt_tokens_details.cached_tokens
            for choice in chunk.choices:
                annotations = getattr(choice.delta, "annotations", None) or annotations
                answer += choice.delta.content or ""
                print(choice.delta.content or "", end="", flush=True)
    print()
    for place in annotations[:3]:
        print(f"  {place['score']:.2f} {place['url_citation']['url']} {place['quote']}")
    print(f"  first token after {facts['ttft_ms']:.0f} ms, {reused} tokens of the prompt reused")
    return answer


def main() -> None:
    """Ask over the first index there is, or over the one that was named."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("questions", nargs="*", metavar="QUESTION", default=QUESTIONS)
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1", help="the server's base URL")
    parser.add_argument("--model", help="coinrag/NAME; by default the first index there is")
    given = parser.parse_args()
    client = OpenAI(base_url=given.url, api_key=os.environ.get("OPENAI_API_KEY", "none"))
    indexes = [each.id for each in client.models.list() if each.id.startswith("coinrag/")]
    if not given.model and not indexes:
        parser.error("the server has no index yet: start it with coinkv serve --docs FOLDER")
    messages: list[dict[str, str]] = []
    for question in given.questions:
        messages.append({"role": "user", "content": question})
        answer = tell(client, given.model or indexes[0], messages)
        messages.append({"role": "assistant", "content": answer})


if __name__ == "__main__":
    main()
