"""What quantised KV costs in bytes and in answers, by both front doors.

    python benchmarks/codec_fidelity.py --indexes DIR --data DIR --out FILE

CoinRAG: the dev halves of the sets, from indexes DIR/<set>/sentences built raw; each block passes
through the codec when it is read. KVBoost: later questions on one text, its KV kept in each codec.
First tokens and answers are held against raw, files against those of 16-bit raw.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from coinkv.boost.engine import KVBoost
from coinkv.evaluate.boost.layouts import sittings
from coinkv.evaluate.boost.prompts import prompt_model
from coinkv.evaluate.boost.run import ANSWER_LEAD as CODE_LEAD
from coinkv.evaluate.boost.texts import asked_texts, spread_over_lengths
from coinkv.evaluate.dataset import half, read_set
from coinkv.evaluate.metrics import token_f1
from coinkv.evaluate.provenance import versions
from coinkv.evaluate.run import ANSWER_LEAD, ANSWER_TOKENS
from coinkv.kv.codec import PAGE_TOKENS, CodecName, codec_named
from coinkv.model.decode import Sampling
from coinkv.model.decode_batch import decode_batch
from coinkv.rag.ask import CoinRAG
from coinkv.rag.index import Index
from coinkv.store.base import BlockRead, BlockStore
from coinkv.store.disk import DiskStore

SETS = ("hotpotqa", "2wikimqa", "musique")
CODECS: tuple[CodecName, ...] = ("int8", "kivi")


class Through(BlockStore):
    """A store whose blocks pass through a codec whenever they are read."""

    def __init__(self, store: BlockStore, codec: CodecName) -> None:
        self._store, self._codec = store, codec_named(codec)

    def get(self, key: str, spans: Sequence[tuple[int, int]] | None = None) -> BlockRead | None:
        whole = self._store.get(key)
        if whole is None:
            return None
        tokens, *rest = whole.kv.shape
        pages = [min(PAGE_TOKENS, tokens - at) for at in range(0, tokens, PAGE_TOKENS)]
        content = self._codec.encode(whole.kv)
        kv = self._codec.decode(content, tuple(rest), whole.kv.dtype, pages)
        rows = torch.cat([torch.arange(*span) for span in spans or [(0, tokens)]])
        return replace(whole, kv=kv[rows], positions=whole.positions[rows])

    def put(self, key: str, kv: torch.Tensor, positions: torch.Tensor) -> int:
        return self._store.put(key, kv, positions)

    def delete(self, key: str) -> bool:
        return self._store.delete(key)

    def keys(self) -> Iterator[str]:
        return self._store.keys()

    def size_bytes(self, key: str) -> int:
        return self._store.size_bytes(key)


def file_ratios(store: BlockStore, blocks: int) -> dict[str, Any]:
    """Bytes of block files in each codec over those of 16-bit raw files."""
    keys = [key for _, key in zip(range(blocks), store.keys(), strict=False)]
    sizes = {}
    with tempfile.TemporaryDirectory() as folder:
        for codec in ("raw", *CODECS):
            disk = DiskStore(Path(folder) / codec, fsync=False, codec=codec)
            for key in keys:
                read = store.get(key)
                if read is not None:
                    disk.put(key, read.kv.half(), read.positions)
            sizes[codec] = disk.total_bytes()
    return {codec: sizes[codec] / sizes["raw"] for codec in CODECS} | {"blocks": len(keys)}


def coinrag(index: Index, rows: Sequence[Any], codec: CodecName | None) -> list[dict[str, Any]]:
    """First token and answer of every question."""
    if codec is not None:
        blocks = replace(index.bench.blocks, store=Through(index.bench.blocks.store, codec))
        index = replace(index, bench=replace(index.bench, blocks=blocks))
    asker = CoinRAG(index, answer_lead=ANSWER_LEAD)
    sampling = Sampling(max_tokens=ANSWER_TOKENS, first_line=True)
    found = []
    for at in range(0, len(rows), 8):
        group = rows[at : at + 8]
        firsts = [asker.first_token(row.question, answer_tokens=ANSWER_TOKENS) for row in group]
        decoded = decode_batch(
            index.backbone,
            [first.context.cache for first in firsts],
            [first.logits for first in firsts],
            sampling,
        )
        for row, first, answer in zip(group, firsts, decoded, strict=True):
            found.append(
                {
                    "logits": first.logits.log_softmax(-1),
                    "f1": token_f1(answer.text, row.answers),
                    "text": answer.text,
                }
            )
    return found


def boosted(model: str, data: Path, documents: int) -> dict[str, list[dict[str, Any]]]:
    """First tokens of later questions on one text, by codec."""
    prompts = prompt_model(model, device=None, dtype=None)
    texts = spread_over_lengths(
        asked_texts(read_set(data), prompts.count_tokens), documents, 2600, 0
    )
    backbone = KVBoost.from_pretrained(model, budget_bytes=0, repair="none").backbone
    engines = {
        codec: KVBoost.from_pretrained(
            backbone, budget_bytes=4 * 10**9, codec=codec, repair="selective"
        )
        for codec in ("raw", *CODECS)
    }
    found: dict[str, list[dict[str, Any]]] = {codec: [] for codec in engines}
    for layout in ("document_first", "varying_preamble"):
        for sitting in sittings(layout, texts, prompts, lead=CODE_LEAD, room=1, seed=0):
            first, *later = (asked.prompt for asked in sitting.prompts)
            for engine in engines.values():
                engine.invalidate()
            cold = engines["raw"].first_token(first, reuse="exact")
            for codec, engine in engines.items():
                engine.keep(cold)
                for prompt in later:
                    logits = engine.first_token(prompt).placed.logits
                    found[codec].append({"logits": logits.log_softmax(-1)})
    return found


def against(found: Sequence[dict[str, Any]], raw: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Agreement with raw."""
    pairs = list(zip(found, raw, strict=True))
    facts = {
        "questions": len(pairs),
        "first_token_agreement": mean(
            float(one["logits"].argmax() == other["logits"].argmax()) for one, other in pairs
        ),
        "kl": mean(
            float((other["logits"].exp() * (other["logits"] - one["logits"])).sum())
            for one, other in pairs
        ),
    }
    if "f1" in found[0]:
        facts |= {
            "f1": mean(one["f1"] for one in found),
            "f1_raw": mean(other["f1"] for other in raw),
            "same_answers": mean(float(one["text"] == other["text"]) for one, other in pairs),
        }
    return facts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--indexes", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--documents", type=int, default=6)
    parser.add_argument("--limit", type=int, default=None)
    arguments = parser.parse_args()
    facts: dict[str, Any] = {
        "command": " ".join(["python", *sys.argv]),
        "versions": versions(),
        "files": {},
        "coinrag": {codec: {} for codec in CODECS},
    }
    every: dict[str, list[dict[str, Any]]] = {codec: [] for codec in ("raw", *CODECS)}
    for name in SETS:
        index = Index.open(arguments.indexes / name / "sentences")
        facts["files"][name] = file_ratios(index.bench.blocks.store, 50)
        rows = half(read_set(arguments.data / f"{name}.jsonl"), "dev").rows[: arguments.limit]
        raw = coinrag(index, rows, None)
        every["raw"] += raw
        for codec in CODECS:
            found = coinrag(index, rows, codec)
            every[codec] += found
            facts["coinrag"][codec][name] = against(found, raw)
            print(name, codec, facts["coinrag"][codec][name], file=sys.stderr)
    for codec in CODECS:
        facts["coinrag"][codec]["all"] = against(every[codec], every["raw"])
    boost = boosted(arguments.model, arguments.data / "pycode_bugloc.jsonl", arguments.documents)
    facts["kvboost"] = {codec: against(boost[codec], boost["raw"]) for codec in CODECS}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
