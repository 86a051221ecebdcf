"""Rows of a sweep that nobody ran, of plausible size and shape, and what is made of them."""

from __future__ import annotations

import json
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coinkv.evaluate.budget import Budget
from coinkv.evaluate.configuration import Configuration
from coinkv.evaluate.report.part import Part, parts_of
from coinkv.evaluate.results import Result, Ttft, read_results

SETS = {"hotpotqa": 24.0, "2wikimqa": 19.0, "musique": 11.0}
VERSIONS = {"coinkv": "0.1.0", "torch": "2.13.0", "machine": "Linux x86_64", "threads": 1}
# method: F1 above the set's level, ms a token of context, retrieval unit
METHODS = {
    "standard_rag": (2.0, 3.2, "chunk"),
    "text_nuggets": (-2.0, 3.2, "nugget"),
    "standard_cag": (-1.0, 0.25, "chunk"),
    "cacheblend": (1.0, 0.25, "chunk"),
    "coinrag": (1.5, 0.3, "nugget"),
    "coinrag_cacheblend": (2.0, 0.3, "nugget"),
}


def generator(*name: Any) -> np.random.Generator:
    """The same numbers for the same name in every process."""
    return np.random.default_rng(zlib.crc32(repr(name).encode()))


def answers(
    method: str = "coinrag",
    *,
    k_chunks: int = 3,
    k_nuggets: int | None = 10,
    options: Mapping[str, Any] | None = None,
    set: str = "hotpotqa",
    half: str = "dev",
    index: str = "sentences",
    f1: float = 30.0,
    p99: float = 200.0,
    len_tokens: float = 400.0,
    ids: Iterable[str] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """An `answers` row; F1 of the questions scatter around `f1`, their mean is the row's."""
    names = [f"{half}{n}" for n in range(40)] if ids is None else list(ids)
    draw = generator(method, k_chunks, k_nuggets, options, set, half, index)
    hard = generator(set, half).beta(0.5, 0.7, len(names))  # a question is hard for every method
    values = 100 * np.clip(hard + (f1 / 100 - hard.mean()) + draw.normal(0, 0.1, len(names)), 0, 1)
    values = values.round(2)
    return {
        "kind": "answers",
        "set": set,
        "half": half,
        "index": index,
        "method": method,
        "options": dict(options or {}),
        "k_chunks": k_chunks,
        "k_nuggets": k_nuggets,
        "adapter": None,
        "fingerprint": "a09b7b99fb7a" * 5,
        "model": "smollm2-135m-instruct",
        "seed": 0,
        "command": f"coinkv sweep --set {set} --half {half}",
        "versions": VERSIONS,
        "questions": len(names),
        "f1": float(values.mean()),
        "exact_match": float(values.mean()) / 2,
        "len_tokens": len_tokens,
        "kv_bytes": 23040 * len_tokens,
        "evidence_recall": 0.6,
        "answer_recall": None,
        "ttft_ms": {"mean": 0.8 * p99, "p50": 0.78 * p99, "p99": p99},
        "decode_tokens_per_second": 12.5,
        "layer_tokens": 30.0 * len_tokens,
        "flops": 2.7e8 * len_tokens,
        "per_question": [
            {"id": name, "f1": float(value), "exact_match": 0, "len_tokens": 9, "answer": "x"}
            for name, value in zip(names, values, strict=True)
        ],
        **more,
    }


def timing(answered: Mapping[str, Any], round: int, ttft_ms: list[float]) -> dict[str, Any]:
    """A `timing` row of the same run as an `answers` row."""
    same = ("set", "half", "index", "method", "options", "k_chunks", "k_nuggets", "adapter")
    more = ("fingerprint", "model", "seed", "versions")
    mean = sum(ttft_ms) / len(ttft_ms)
    shares = {"embed": 0.1, "retrieve": 0.01, "read": 0.1, "compose": 0.05, "prefill": 0.74}
    return {
        "kind": "timing",
        **{name: answered[name] for name in (*same, *more)},
        "command": "coinkv sweep --timing",
        "round": round,
        "ttft_ms": ttft_ms,
        "stages_ms": {stage: share * mean for stage, share in shares.items()},
    }


def a_sweep(fingerprint: str | None = None, model: str | None = None) -> Iterator[dict[str, Any]]:
    """A whole sweep over three sets: six methods, three r, ablations, timing rounds."""
    for row in _runs():
        row |= {"fingerprint": fingerprint or row["fingerprint"], "model": model or row["model"]}
        yield row
        times = generator(row["method"], row["k_chunks"], row["set"]).normal(1, 0.08, 200)
        for n in range(2):
            yield timing(row, n, [float(row["ttft_ms"]["mean"] * max(t, 0.7)) for t in times])


def _runs() -> Iterator[dict[str, Any]]:
    for set_, level in SETS.items():
        for method, (gain, cost, unit) in METHODS.items():
            ratios = (0.1, 0.3, 0.6) if "cacheblend" in method else (None,)
            for k_chunks in (1, 3, 5):
                for k_nuggets in (None,) if unit == "chunk" else (3, 10):
                    for ratio in ratios:
                        tokens = 135 * k_chunks if unit == "chunk" else 28 * k_nuggets * 0.9
                        tokens += 28
                        per_token = cost + 2.4 * (ratio or 0)
                        reach = 5 * np.log2(k_chunks + 1) + (np.log2(k_nuggets) if k_nuggets else 2)
                        common = {
                            "k_chunks": k_chunks,
                            "k_nuggets": k_nuggets,
                            "options": {} if ratio is None else {"ratio": ratio},
                            "set": set_,
                            "f1": level + gain + reach - 8 + (3 * ratio if ratio else 0),
                            "p99": 80 + per_token * tokens,
                            "len_tokens": tokens,
                            "flops": 2.7e8 * (20 + tokens * min(1, per_token / 3.2)),
                        }
                        for half in ("dev", "test"):
                            yield answers(method, half=half, **common)
        yield from _ablations(set_, level)


def _ablations(set_: str, level: float) -> Iterator[dict[str, Any]]:
    changes: tuple[tuple[dict[str, Any], float, float], ...] = (
        ({"options": {"encoding": "isolated"}}, -6, 1.0),
        ({"options": {"stages": 1}}, -3, 1.05),
        ({"options": {"align": False}}, -1, 0.97),
        ({"index": "windows"}, -2, 1.1),
        ({"index": "alone"}, -4, 1.0),
    )
    for k_chunks, k_nuggets in ((3, 3), (3, 10)):
        for change, loss, slower in changes:
            tokens = 28 * k_nuggets * 0.9 + 28
            yield answers(
                k_chunks=k_chunks,
                k_nuggets=k_nuggets,
                set=set_,
                f1=level + 1.5 + 10 + np.log2(k_nuggets) - 8 + loss,
                p99=slower * (80 + 0.3 * tokens),
                len_tokens=tokens * slower,
                **change,
            )


def written(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """A results file."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def on_both(
    method: str = "coinrag", dev: float = 30.0, test: float = 28.0, **more: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A configuration's rows on the dev and on the test half."""
    return (
        answers(method, half="dev", f1=dev, **more),
        answers(method, half="test", f1=test, **more),
    )


def part_of(*rows: Mapping[str, Any], budgets: Sequence[Budget] = (Budget(),)) -> Part:
    """The part of a report about the one backbone of these rows."""
    with tempfile.TemporaryDirectory() as folder:
        results = read_results([written(Path(folder) / "rows.jsonl", rows)]).results
    (part,) = parts_of(results, budgets)
    return part


def result(
    f1: float,
    p99: float,
    *,
    method: str = "coinrag",
    k: tuple[int, int | None] = (3, 10),
    half: str = "dev",
    set: str = "a",
    len_tokens: float = 100.0,
    options: tuple[tuple[str, Any], ...] = (),
    fingerprint: str = "f",
) -> Result:
    """A result of one question."""
    return Result(
        set=set,
        half=half,
        configuration=Configuration(method, *k, options=options),
        fingerprint=fingerprint,
        model="m",
        f1=f1,
        exact_match=0.0,
        per_question_f1={"1": f1},
        len_tokens=len_tokens,
        ttft=Ttft(0.8 * p99, 0.8 * p99, p99, 1000, {}, apart=True),
    )
