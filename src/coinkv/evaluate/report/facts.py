"""`report.json`: every number of a report's tables and figures, for programs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from coinkv.evaluate.budget import Choice
from coinkv.evaluate.configuration import Configuration
from coinkv.evaluate.report.ablation import Ablation
from coinkv.evaluate.report.charts import Chart
from coinkv.evaluate.report.measured import in_words
from coinkv.evaluate.report.notes import notes
from coinkv.evaluate.report.part import Block, Part
from coinkv.evaluate.results import Result


def facts_of(part: Part, charts: Sequence[Chart]) -> dict[str, Any]:
    """A part as an object that JSON can hold: no infinity, no NaN."""
    return {
        "title": part.title,
        "fingerprint": part.fingerprint,
        "models": list(dict.fromkeys(result.model for result in part.results)),
        "results": [_result(result) for result in part.results],
        "budgets": [_block(block) for block in part.blocks],
        "ablations": [_ablation(ablation) for ablation in part.ablations],
        "figures": [asdict(chart) for chart in charts],
        "missing": list(notes(part)),
        "commands": list(dict.fromkeys(c for result in part.results for c in result.commands)),
    }


def _configuration(configuration: Configuration) -> dict[str, Any]:
    return {
        "method": configuration.method,
        "label": configuration.label,
        "k_chunks": configuration.k_chunks,
        "k_nuggets": configuration.k_nuggets,
        "options": dict(configuration.options),
        "index": configuration.index,
        "adapter": configuration.adapter,
    }


def _result(result: Result) -> dict[str, Any]:
    return {
        "set": result.set,
        "half": result.half,
        **_configuration(result.configuration),
        "questions": result.questions,
        "f1": result.f1,
        "exact_match": result.exact_match,
        "evidence_recall": result.evidence_recall,
        "answer_recall": result.answer_recall,
        "len_tokens": result.len_tokens,
        "kv_bytes": result.kv_bytes,
        "ttft_ms": {
            "mean": result.ttft.mean_ms,
            "p50": result.ttft.p50_ms,
            "p99": result.ttft.p99_ms,
        },
        "timed_queries": result.ttft.timed_queries,
        "timed_apart": result.ttft.apart,
        "stages_ms": dict(result.ttft.stages_ms),
        "flops": result.flops,
        "layer_tokens": result.layer_tokens,
        "decode_tokens_per_second": result.decode_tokens_per_second,
    }


def _block(block: Block) -> dict[str, Any]:
    return {
        "budget": block.budget.text,
        "label": block.budget.label,
        "choices": [_choice(choice) for choice in block.choices],
        "comparisons": [
            {
                "first": comparison.first,
                "second": comparison.second,
                "sets": comparison.sets,
                **asdict(comparison.difference),
                "in_words": in_words(comparison),
            }
            for comparison in block.comparisons
        ],
    }


def _choice(choice: Choice) -> dict[str, Any]:
    return {
        "set": choice.set,
        "method": choice.method,
        "configuration": _configuration(choice.dev.configuration) if choice.dev else None,
        "dev_limit_ms": _finite(choice.dev_limit_ms),
        "test_limit_ms": _finite(choice.test_limit_ms),
        "dev": _result(choice.dev) if choice.dev else None,
        "test": _result(choice.test) if choice.test else None,
        "kept_on_test": choice.kept_on_test,
        "why_not": choice.why_not,
    }


def _ablation(ablation: Ablation) -> dict[str, Any]:
    return {
        "change": ablation.change,
        "method": ablation.method,
        "label": ablation.label,
        "pairs": [
            {"plain": _result(plain), "changed": _result(changed)}
            for plain, changed in ablation.pairs
        ],
        **asdict(ablation.difference),
    }


def _finite(limit: float | None) -> float | None:
    return limit if limit is not None and math.isfinite(limit) else None
