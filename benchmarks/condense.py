"""How the last question of a chat is best condensed: retrieval, nuggets, answers, and cost.

    coinkv build src/coinkv/cli/demo_data/docs --index INDEX [--model MODEL]
    python benchmarks/condense.py --index INDEX --out DIR

Asks the index of the demo documents every question of benchmarks/follow_ups.jsonl (40 that go on
from earlier turns, 10 that change the subject) in each mode, and as a person wrote it to stand
alone. Writes DIR/<model>.json and .md.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

from coinkv.evaluate.provenance import versions
from coinkv.model.decode import Sampling
from coinkv.model.decode_batch import decode_batch
from coinkv.rag.ask import CoinRAG
from coinkv.rag.condense import condense, greedy
from coinkv.rag.evidence import evidence_of
from coinkv.rag.index import Index

MODES = ("off", "join", "model", "auto")
ALONE = "by hand"
ANSWER_TOKENS = 40
BATCH = 10
SHOWN = ("document", "nugget", "answer")


def holds(text: str, answers: Sequence[str]) -> bool:
    return any(answer.casefold() in text.casefold() for answer in answers)


def condensed(
    rows: Sequence[dict[str, Any]], mode: str, index: Index
) -> Iterator[tuple[dict[str, Any], str, float]]:
    """Each row with its question in a mode, and the seconds that took."""
    generate = greedy(index.backbone)
    for row in rows:
        started = time.perf_counter()
        question = (
            row["alone"] if mode == ALONE else condense(row["messages"], mode, generate=generate)
        )
        yield row, question, time.perf_counter() - started


def measured(
    asker: CoinRAG,
    rows: Sequence[dict[str, Any]],
    mode: str,
    tell: Callable[[int], None],
) -> Iterator[dict[str, Any]]:
    """A row for every question in a mode."""
    index, catalogue = asker.index, asker.index.catalogue
    asked = list(condensed(rows, mode, index))
    for at in range(0, len(asked), BATCH):
        part = asked[at : at + BATCH]
        firsts = [
            asker.first_token(question, answer_tokens=ANSWER_TOKENS) for _, question, _ in part
        ]
        decoded = decode_batch(
            index.backbone,
            [first.context.cache for first in firsts],
            [first.logits for first in firsts],
            asker.sampling,
        )
        for (row, question, seconds), first, answer in zip(part, firsts, decoded, strict=True):
            chunks = [chunk.content_hash for chunk in first.retrieval.chunks]
            keys = {p.document_key for chunk in chunks for p in catalogue.placements_of(chunk)}
            nuggets = evidence_of(catalogue, first.retrieval, "nugget")
            yield {
                "id": row["id"],
                "kind": row["kind"],
                "mode": mode,
                "question": question,
                "document": row["document"] in keys,
                "nugget": any(
                    piece.document == row["document"] and holds(piece.text, row["answers"])
                    for piece in nuggets
                ),
                "answer": holds(answer.text, row["answers"]),
                "text": answer.text.strip(),
                "suffix_tokens": len(first.suffix_ids),
                "ttft_ms": 1000 * first.clock.total_seconds,
                "condense_ms": 1000 * seconds,
            }
        tell(at + len(part))


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Shares and costs by mode and kind."""
    facts: dict[str, Any] = {}
    for mode in dict.fromkeys(row["mode"] for row in rows):
        for kind in dict.fromkeys(row["kind"] for row in rows):
            group = [row for row in rows if (row["mode"], row["kind"]) == (mode, kind)]
            facts.setdefault(mode, {})[kind] = {
                **{name: mean(float(row[name]) for row in group) for name in SHOWN},
                "suffix_tokens": mean(row["suffix_tokens"] for row in group),
                "condense_ms": median(row["condense_ms"] for row in group),
                "ttft_ms": median(row["ttft_ms"] for row in group),
                "questions": len(group),
            }
    return facts


def table(facts: dict[str, Any]) -> str:
    """The summary in Markdown; shares in per cent, follow-ups first, then changes of subject."""
    lines = [
        "| mode | document among 5 chunks | answer in a nugget | right answer "
        "| tokens of the suffix | condensing |",
        "|---|---|---|---|---|---|",
    ]
    for mode, kinds in facts.items():
        shares = (" / ".join(f"{100 * of[name]:.0f} %" for of in kinds.values()) for name in SHOWN)
        first = next(iter(kinds.values()))
        lines.append(
            f"| {mode} | {' | '.join(shares)} | {first['suffix_tokens']:.0f} | "
            f"{first['condense_ms']:.0f} ms |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--index", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--name", help="of the result; by default the model's")
    parser.add_argument("--modes", default=",".join((*MODES, ALONE)))
    arguments = parser.parse_args()
    follow_ups = Path(__file__).with_name("follow_ups.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in follow_ups.splitlines()]
    index = Index.open(arguments.index)
    asker = CoinRAG(index, sampling=Sampling(ANSWER_TOKENS, first_line=True))
    found: list[dict[str, Any]] = []
    for mode in arguments.modes.split(","):
        found += measured(asker, rows, mode, lambda done, mode=mode: print(mode, done, flush=True))
    facts = summary(found)
    name = arguments.name or Path(index.backbone.name).name
    arguments.out.mkdir(parents=True, exist_ok=True)
    made = {
        "command": " ".join(["python", *sys.argv]),
        "model": name,
        "versions": versions(),
        "modes": facts,
        "rows": found,
    }
    result = json.dumps(made, indent=1, ensure_ascii=False)
    (arguments.out / f"{name}.json").write_text(f"{result}\n", encoding="utf-8")
    (arguments.out / f"{name}.md").write_text(table(facts), encoding="utf-8")


if __name__ == "__main__":
    main()
