"""The llm extractor against a real endpoint: what replies are worth, and what they cost.

    coinkv serve --model M --port 8000
    python benchmarks/extraction.py ask --docs DOCS --url http://127.0.0.1:8000/v1 --model M \
        --replies FILE.jsonl [--chunks N] [--concurrency N]
    python benchmarks/extraction.py report FILE.jsonl [--strict] [--answer-tokens N]

`ask` sends chunks through the extractor as a build does and records every reply; `report` reads and
aligns recorded replies again, with today's code and without a model. With --strict only a JSON list
of strings counts, as asked for; the difference is what mending is worth. --answer-tokens cuts
replies as an endpoint with that limit would have (by their share of characters).
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any

import httpx

from coinkv.corpus.align import Alignment, align
from coinkv.corpus.chunks import Chunk, split
from coinkv.corpus.documents import read_documents
from coinkv.corpus.extract.llm import LLMExtractor
from coinkv.corpus.extract.replies import last_end, read_reply
from coinkv.corpus.extract.sentences import SentenceExtractor
from coinkv.model.backbone import Backbone
from coinkv.model.load import load


class Recording(LLMExtractor):
    """The extractor as it is, and a row of every reply."""

    def __init__(self, *args: Any, file: Path, **options: Any) -> None:
        super().__init__(*args, **options)
        self._file, self._writing = file, threading.Lock()

    def _client(self) -> httpx.Client:
        client = super()._client()
        client.event_hooks["response"] = [self._record]
        return client

    def _record(self, response: httpx.Response) -> None:
        response.read()
        body, asked = response.json(), json.loads(response.request.content)
        row: dict[str, Any] = {
            "passage": asked["messages"][-1]["content"].removeprefix("Passage:\n"),
            "model": asked["model"],
            "max_tokens": asked["max_tokens"],
            "status": response.status_code,
            "seconds": round(response.elapsed.total_seconds(), 3),
        }
        if response.is_success:
            choice, usage = body["choices"][0], body["usage"]
            row |= {
                "reply": choice["message"]["content"],
                "finish_reason": choice["finish_reason"],
                "prompt_tokens": usage["prompt_tokens"],
                "answer_tokens": usage["completion_tokens"],
                "reuse": body["coinkv"]["reuse"],
                "ttft_ms": round(body["coinkv"]["ttft_ms"], 1),
            }
        with self._writing, self._file.open("a") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def chunks_of(docs: Path, backbone: Backbone, count: int) -> list[Chunk]:
    """The first chunks of all documents in turn, then the second ones, and so on."""
    every = [split(document, backbone) for document in read_documents(docs)]
    in_turn = chain.from_iterable(zip_longest(*every))
    return list(islice((chunk for chunk in in_turn if chunk is not None), count))


def ask(given: argparse.Namespace) -> None:
    chunks = chunks_of(given.docs, load(given.tokenizer or given.model), given.chunks)
    known = {row["passage"] for row in rows_of(given.replies)} if given.replies.exists() else set()
    texts = [chunk.text for chunk in chunks if chunk.text not in known]
    with tempfile.TemporaryDirectory() as folder:
        extractor = Recording(
            given.url,
            given.model,
            concurrency=given.concurrency,
            cache_dir=Path(folder),
            fallback=SentenceExtractor(),
            file=given.replies,
        )
        started = time.perf_counter()
        for done, _ in enumerate(extractor.extract_all(texts), 1):
            print(f"{done} of {len(texts)}, {time.perf_counter() - started:.0f} s", flush=True)
    print(json.dumps(extractor.counts))


def report(given: argparse.Namespace) -> None:
    for path in given.replies:
        rows = [cut(row, given.answer_tokens) for row in rows_of(path)]
        told = facts(rows, given.strict)
        print(json.dumps({"file": path.name, "strict": given.strict, **told}))


def rows_of(path: Path) -> list[dict[str, Any]]:
    """Recorded replies, refusals left out."""
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return [row for row in rows if "reply" in row]


def cut(row: dict[str, Any], most: int | None) -> dict[str, Any]:
    if most is None or row["answer_tokens"] <= most:
        return row
    kept = len(row["reply"]) * most // row["answer_tokens"]
    return {**row, "reply": row["reply"][:kept], "finish_reason": "length"}


def facts(rows: Sequence[dict[str, Any]], strict: bool) -> dict[str, Any]:
    """What the replies were worth, and what they cost."""
    counts = Counter[str]()
    for row in rows:
        counts += worth(row, strict)
    reuse = [row["reuse"] for row in rows]
    characters = counts["characters"]
    return {
        "replies": len(rows),
        **{name: counts[name] for name in ("malformed", "mended", "cut_off", "empty")},
        **{name: counts[name] for name in ("exact", "fuzzy", "abandoned")},
        "chunks_without_nuggets": counts["bare"],
        "coverage_by_model": round(counts["covered_by_model"] / characters, 3),
        "coverage": round(counts["covered"] / characters, 3),
        "seconds": statistics.median(row["seconds"] for row in rows),
        "answer_tokens": statistics.median(row["answer_tokens"] for row in rows),
        "seconds_of_a_token": round(
            sum(row["seconds"] - row["ttft_ms"] / 1000 for row in rows)
            / sum(row["answer_tokens"] for row in rows),
            3,
        ),
        "exact_tokens": [split["exact"] for split in reuse],
        "prompt_tokens": [row["prompt_tokens"] for row in rows],
    }


def worth(row: dict[str, Any], strict: bool) -> Counter[str]:
    """What became of one reply; coverage is counted in characters."""
    passage, fallback = row["passage"], SentenceExtractor()
    reply = read_reply(row["reply"], passage, cut_off=row["finish_reason"] == "length")
    if reply is None or (strict and reply.mended):
        every = aligned(passage, fallback.extract(passage))
        model = aligned(passage, [])
        told = Counter(malformed=1)
    else:
        behind = len(passage) if reply.whole else last_end(reply.candidates, passage)
        every = aligned(passage, [*reply.candidates, *fallback.extract(passage[behind:])])
        model = aligned(passage, reply.candidates)
        told = Counter(mended=reply.mended, cut_off=not reply.whole, empty=not reply.candidates)
    return told + Counter(
        exact=model.exact,
        fuzzy=model.fuzzy,
        abandoned=model.abandoned,
        bare=not every.nuggets,
        covered_by_model=model.covered_tokens,
        covered=every.covered_tokens,
        characters=model.total_tokens,
    )


def aligned(passage: str, candidates: Sequence[str]) -> Alignment:
    characters = tuple((at, at + 1) for at in range(len(passage)))
    ids = tuple(map(ord, passage))
    return align(candidates, Chunk("", 0, "", (), ids, characters, passage, 0, len(passage)))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    asking = commands.add_parser("ask")
    asking.add_argument("--docs", type=Path, required=True)
    asking.add_argument("--url", required=True)
    asking.add_argument("--model", required=True, help="as the endpoint calls it")
    asking.add_argument("--tokenizer", help="model to cut chunks for, where it has another name")
    asking.add_argument(
        "--replies", type=Path, required=True, help="JSON lines; what is there is kept"
    )
    asking.add_argument("--chunks", type=int, default=16)
    asking.add_argument("--concurrency", type=int, default=1)
    asking.set_defaults(run=ask)
    reporting = commands.add_parser("report")
    reporting.add_argument("replies", type=Path, nargs="+")
    reporting.add_argument("--strict", action="store_true", help="only JSON lists count")
    reporting.add_argument("--answer-tokens", type=int, help="cut replies off there")
    reporting.set_defaults(run=report)
    given = parser.parse_args()
    given.run(given)


if __name__ == "__main__":
    main()
