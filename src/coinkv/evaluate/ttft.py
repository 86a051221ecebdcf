"""Time to first token of the methods, side by side in one run, with the floor beneath CoinRAG."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from coinkv.errors import InputError
from coinkv.evaluate.provenance import spread_ms, versions
from coinkv.evaluate.timing import ANSWER_ROOM, STAGES
from coinkv.model.fill import fill
from coinkv.rag.ask import CoinRAG, FirstToken
from coinkv.rag.index import Index

METHODS = ("standard_rag", "standard_cag", "coinrag")
_WARM_UP = 2


@dataclass
class _Timings:
    """What was measured of one method."""

    ttft: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    len_tokens: list[int] = field(default_factory=list)
    stages: dict[str, list[float]] = field(default_factory=dict)

    def add(self, first: FirstToken, wall: float) -> None:
        self.ttft.append(first.clock.total_seconds)
        self.wall.append(wall)
        self.len_tokens.append(first.context_tokens)
        for stage in STAGES:
            seconds = first.clock.stages_seconds.get(stage, 0.0)
            self.stages.setdefault(stage, []).append(seconds)

    def to_dict(self) -> dict[str, Any]:
        return {
            "ttft_ms": spread_ms(self.ttft),
            "len_tokens": statistics.mean(self.len_tokens),
            "stages_ms": {s: 1000 * statistics.mean(v) for s, v in self.stages.items()},
            "stages_over_wall": sum(self.ttft) / sum(self.wall),
        }


def bench_ttft(
    index: Index,
    questions: Sequence[str],
    *,
    k_chunks: int | None = None,
    k_nuggets: int | None = None,
    repeat: int = 1,
    methods: Sequence[str] = METHODS,
    on_progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Measure TTFT question by question, the methods in turn, in this process.

    TTFT runs from the question's arrival to the first token's logits (paper arXiv 2608.07458,
    appendix E), models and store warmed up, batch 1. The floor is the suffix prefill alone on the
    context that `coinrag` just composed, already resident.

    Args:
        index: what to ask.
        questions: asked `repeat` times, in a new order each time.
        k_chunks: chunks retrieved.
        k_nuggets: nuggets retrieved.
        repeat: how often every question is asked.
        methods: which methods.
        on_progress: told of questions done and of all.

    Returns:
        JSON-ready facts: `methods`, `ratios` (medians over questions), `floor`, `questions`,
        `fingerprint`, `versions`.
    """
    if repeat < 1:
        raise InputError(f"repeat is {repeat}", hint="use 1 or more")
    askers = {
        name: CoinRAG(index, method=name, k_chunks=k_chunks, k_nuggets=k_nuggets)
        for name in methods
    }
    timings = {name: _Timings() for name in askers}
    floors: list[float] = []
    read = pages = 0
    for question in questions[:_WARM_UP]:
        for asker in askers.values():
            _floor(index, asker.first_token(question, answer_tokens=ANSWER_ROOM))
    order = random.Random(0)
    for turn in range(repeat):
        for done, question in enumerate(order.sample(questions, len(questions))):
            if on_progress is not None:
                on_progress(turn * len(questions) + done, repeat * len(questions))
            for name in order.sample(list(askers), len(askers)):
                started = time.perf_counter()
                first = askers[name].first_token(question, answer_tokens=ANSWER_ROOM)
                timings[name].add(first, time.perf_counter() - started)
                if name == "coinrag":
                    floors.append(_floor(index, first))
                    read += first.context.counts.bytes_read
                    pages += first.context.counts.page_bytes
                del first  # freeing its cache is not part of the next question's time
    return {
        "methods": {name: timing.to_dict() for name, timing in timings.items()},
        "floor": {"ttft_ms": spread_ms(floors)} if floors else None,
        "ratios": _ratios(timings, floors, read, pages),
        "k_chunks": next(iter(askers.values())).k_chunks,
        "k_nuggets": next(iter(askers.values())).k_nuggets,
        "questions": len(questions),
        "repeat": repeat,
        "fingerprint": index.backbone.fingerprint,
        "versions": versions(),
    }


def _floor(index: Index, first: FirstToken) -> float:
    """Seconds of the suffix prefill alone on the context, which is resident already."""
    backbone, cache = index.backbone, first.context.cache
    cache.truncate(cache.length - len(first.suffix_ids))
    start = int(cache.positions.max()) + 1
    live = torch.arange(start, start + len(first.suffix_ids))
    started = time.perf_counter()
    fill(backbone, cache, first.suffix_ids, live)
    backbone.synchronize()
    return time.perf_counter() - started


def _ratios(
    timings: dict[str, _Timings], floors: Sequence[float], read: int, pages: int
) -> dict[str, float | None]:
    def median_ratio(above: Sequence[float], below: Sequence[float]) -> float:
        return statistics.median(a / b for a, b in zip(above, below, strict=True))

    ratios: dict[str, float | None] = {}
    if "coinrag" in timings:
        coinrag = timings["coinrag"].ttft
        for name in ("standard_rag", "standard_cag"):
            if name in timings:
                ratios[f"{name}_over_coinrag"] = median_ratio(timings[name].ttft, coinrag)
        ratios["coinrag_over_floor"] = median_ratio(coinrag, floors)
        ratios["bytes_read_over_page_bytes"] = read / pages if pages else None
    return ratios
