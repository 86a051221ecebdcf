"""Does reuse survive a shift, and does it last? Two measurements on real text.

    python benchmarks/boost_reuse.py --documents hotpotqa.jsonl --long covidqa_long.jsonl --out FILE

Shift: a document of 2,000 tokens after preambles of 1 to 200 tokens; the share of its tokens that
are found again, for each kind of boundaries. Only plans are made; the first text alone is computed.
Decay (LMCache issue 4663): 200 questions, each joining 14 of 60 passages in random order, with
memory for the 60 passages twice; the share reused early and late.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from pathlib import Path
from statistics import mean
from typing import Any, get_args

from coinkv.boost.chunks import Boundaries
from coinkv.boost.engine import KVBoost
from coinkv.evaluate.boost.preambles import preamble
from coinkv.evaluate.dataset import read_set
from coinkv.evaluate.provenance import versions
from coinkv.model.load import load

DOCUMENT_TOKENS = 2000
DOCUMENTS, JOINED, QUESTIONS = 60, 14, 200


def shift(backbone: Any, text: str, seed: int) -> dict[str, Any]:
    """Shares of a document that are reused behind preambles, by boundaries."""
    document = backbone.detokenize(list(backbone.tokenize(text).ids[:DOCUMENT_TOKENS]))
    draw = random.Random(seed)
    befores = [preamble(draw, lambda each: len(backbone.tokenize(each).ids)) for _ in range(200)]
    facts = {}
    for boundaries in get_args(Boundaries):
        boost = KVBoost.from_pretrained(
            backbone, budget_bytes=10**9, boundaries=boundaries, repair="selective"
        )
        boost.warm(f"A first look.\n\n{document}\n\nQuestion: what is it about?")
        shares = []
        for before in befores:
            behind = len(backbone.tokenize(f"{before}\n\n").ids)
            spans = boost.plan(f"{before}\n\n{document}\n\nQuestion: who wrote it?").spans
            found = sum(
                max(0, min(end, behind + DOCUMENT_TOKENS) - max(start, behind))
                for start, end, kind in spans
                if kind == "moved"
            )
            shares.append(found / DOCUMENT_TOKENS)
        facts[boundaries] = {"mean": mean(shares), "least": min(shares), "preambles": len(shares)}
    return facts


def decay(backbone: Any, passages: list[str], seed: int) -> dict[str, Any]:
    """Shares reused over many questions that recombine the same passages."""
    tokens = sum(len(backbone.tokenize(passage).ids) for passage in passages)
    of_token = backbone.shape.values_per_token * backbone.dtype.itemsize
    boost = KVBoost.from_pretrained(
        backbone, budget_bytes=2 * tokens * of_token, repair="selective"
    )
    draw = random.Random(seed)
    splits = []
    for number in range(QUESTIONS):
        joined = "\n\n".join(draw.sample(passages, JOINED))
        prompt = [{"role": "user", "content": f"{joined}\n\nQuestion {number}: which is oldest?"}]
        splits.append(boost.warm(prompt).reuse)
        if number % 20 == 19:
            print(number + 1, splits[-1], file=sys.stderr)

    def share(first: int, end: int, *kinds: str) -> float:
        taken = splits[first:end]
        return sum(getattr(s, kind) for s in taken for kind in kinds) / sum(s.total for s in taken)

    kinds = ("exact", "moved", "repaired", "computed")
    early, late = (20, 70), (QUESTIONS - 50, QUESTIONS)
    stats = boost.stats().cache
    return {
        "passages_tokens": tokens,
        "budget_bytes": 2 * tokens * of_token,
        "questions_20_to_70": {kind: share(*early, kind) for kind in kinds},
        "last_50_questions": {kind: share(*late, kind) for kind in kinds},
        "moved_late_over_early": share(*late, "moved", "repaired")
        / share(*early, "moved", "repaired"),
        "exact_late_over_early": share(*late, "exact") / max(1e-9, share(*early, "exact")),
        "runs_kept": stats.runs,
        "tokens_kept": stats.tokens,
        "evictions": stats.tiers.memory_evictions,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=Path, required=True)
    parser.add_argument("--long", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    backbone = load(arguments.model)
    rows = read_set(arguments.documents).rows
    every = {f"{p.title}\n{p.text}": None for row in rows for p in row.passages}
    passages = random.Random(arguments.seed).sample(list(every), DOCUMENTS)
    long = json.loads(arguments.long.read_text().splitlines()[0])["text"]
    facts = {
        "command": " ".join(["python", *sys.argv]),
        "versions": versions(),
        "shift": shift(backbone, long, arguments.seed),
        "decay": decay(backbone, passages, arguments.seed),
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
