"""What a sweep found: the rows of its results files, answers joined with their times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from coinkv.errors import InputError
from coinkv.evaluate.configuration import Configuration
from coinkv.evaluate.rows import Row, is_measure, read_rows


@dataclass(frozen=True)
class Ttft:
    """Time to first token over the timed queries (paper arXiv 2608.07458, appendix E).

    Attributes:
        mean_ms: mean.
        p50_ms: median.
        p99_ms: 99th percentile.
        timed_queries: how many queries these are over.
        stages_ms: mean of each stage (`embed`, `retrieve`, ...), empty if not measured.
        apart: measured in runs made for timing, not while the questions were answered.
    """

    mean_ms: float
    p50_ms: float
    p99_ms: float
    timed_queries: int
    stages_ms: Mapping[str, float]
    apart: bool


@dataclass(frozen=True)
class Result:
    """One configuration on one half of a set.

    Attributes:
        set: name of the set of questions.
        half: `dev`, `test` or `all`.
        configuration: what was run.
        fingerprint: of the backbone; only results of one fingerprint are compared.
        model: name of the backbone.
        f1: mean token F1, 0 to 100.
        exact_match: share of exact answers, 0 to 100.
        per_question_f1: F1 of each question by its id.
        len_tokens: mean tokens in `C_ctx`.
        ttft: time to first token.
        kv_bytes: mean bytes of KV that the context holds.
        evidence_recall: share of gold passages in the context, 0 to 1.
        answer_recall: share of answer strings in the context, 0 to 1.
        layer_tokens: mean over questions of tokens computed, summed over layers.
        flops: mean floating point operations of a question's prefill.
        decode_tokens_per_second: speed of decoding.
        commands: what was typed to answer the questions, and to time them.
        versions: software and machine of these runs.
        note: what the method says a reader must know, such as that it was not trained.
    """

    set: str
    half: str
    configuration: Configuration
    fingerprint: str
    model: str
    f1: float
    exact_match: float
    per_question_f1: Mapping[str, float]
    len_tokens: float
    ttft: Ttft
    kv_bytes: float | None = None
    evidence_recall: float | None = None
    answer_recall: float | None = None
    layer_tokens: float | None = None
    flops: float | None = None
    decode_tokens_per_second: float | None = None
    commands: tuple[str, ...] = ()
    versions: tuple[Mapping[str, Any], ...] = ()
    note: str = ""

    @property
    def method(self) -> str:
        """The name of the configuration's method."""
        return self.configuration.method

    @property
    def questions(self) -> int:
        """How many questions were answered."""
        return len(self.per_question_f1)


@dataclass(frozen=True)
class ResultsFile:
    """What was read of one or more results files.

    Attributes:
        results: in the order in which their first rows stand.
        warnings: what was left out, in whole sentences.
    """

    results: tuple[Result, ...]
    warnings: tuple[str, ...]


_Key = tuple[str, str, Configuration, str]


def read_results(paths: Sequence[Path]) -> ResultsFile:
    """Read results files as one: a later row replaces an earlier one of the same run.

    Rows of kind `answers` and `timing` belong together when set, half, configuration and
    fingerprint are the same. The rounds of a configuration are pooled; without a timing row the
    times are those of the answering run. Unknown fields and kinds are passed over.

    Args:
        paths: JSON Lines, one row a run; a last line that a kill cut off is left out.

    Raises:
        InputError: a file cannot be read, a line is no row, or no row holds answers.
    """
    answers: dict[_Key, Result] = {}
    rounds: dict[_Key, dict[Any, Row]] = {}
    warnings = []
    for path in paths:
        rows, cut = read_rows(path)
        if cut:
            warnings.append(f"The last line of {path.name} was cut off and is left out.")
        for row in rows:
            if row.fields.get("kind") == "answers":
                key = _key(row)
                answers[key] = _result(row, key)
            elif row.fields.get("kind") == "timing":
                row.numbers("ttft_ms")
                rounds.setdefault(_key(row), {})[row.number("round")] = row
    if not answers:
        raise InputError(
            "no row holds answers",
            where=", ".join(map(str, paths)) or None,
            hint="write some with: coinkv sweep",
        )
    for set_, half, configuration, _ in rounds.keys() - answers.keys():
        name = f"{configuration.method} at {configuration.label}"
        warnings.append(f"{name} was timed on {set_} ({half}), but has no answers; it is left out.")
    results = [
        _retimed(result, list(rounds[key].values())) if key in rounds else result
        for key, result in answers.items()
    ]
    return ResultsFile(tuple(results), tuple(sorted(warnings)))


def by_fingerprint(results: Iterable[Result]) -> dict[str, tuple[Result, ...]]:
    """Results of each backbone, in the order in which the backbones first appear."""
    parts: dict[str, list[Result]] = {}
    for result in results:
        parts.setdefault(result.fingerprint, []).append(result)
    return {fingerprint: tuple(of_it) for fingerprint, of_it in parts.items()}


def require_one_fingerprint(results: Iterable[Result]) -> None:
    """Refuse to compare what different backbones gave.

    Raises:
        InputError: the results have more than one fingerprint.
    """
    found = sorted({result.fingerprint[:12] for result in results})
    if len(found) > 1:
        raise InputError(
            f"results of different fingerprints cannot be compared ({', '.join(found)})",
            hint="compare those of one backbone at a time",
        )


def _key(row: Row) -> _Key:
    half = row.text("half")
    if half not in ("dev", "test", "all"):
        raise row.wrong("half")
    try:
        configuration = Configuration.of_row(row.fields)
    except InputError as error:
        raise InputError(error.what, where=row.where) from error
    return row.text("set"), half, configuration, row.text("fingerprint")


def _result(row: Row, key: _Key) -> Result:
    questions = {question.text("id"): question.number("f1") for question in _questions(row)}
    times = row.inner("ttft_ms")
    return Result(
        *key,
        model=row.text("model"),
        f1=row.number("f1"),
        exact_match=row.number("exact_match"),
        per_question_f1=questions,
        len_tokens=row.number("len_tokens"),
        ttft=Ttft(
            times.number("mean"),
            times.number("p50"),
            times.number("p99"),
            timed_queries=len(questions),
            stages_ms=_stages(row),
            apart=False,
        ),
        kv_bytes=row.number_or_none("kv_bytes"),
        evidence_recall=row.number_or_none("evidence_recall"),
        answer_recall=row.number_or_none("answer_recall"),
        layer_tokens=row.number_or_none("layer_tokens"),
        flops=row.number_or_none("flops"),
        decode_tokens_per_second=row.number_or_none("decode_tokens_per_second"),
        commands=_command(row),
        versions=_versions(row),
        note=str(row.fields.get("note", "")),
    )


def _questions(row: Row) -> list[Row]:
    questions = row.objects("per_question")
    if len({question.text("id") for question in questions}) < len(questions):
        raise InputError("`per_question` has an id twice", where=row.where)
    return questions


def _retimed(result: Result, rounds: Sequence[Row]) -> Result:
    """The result with the times of its timing rounds, pooled."""
    times = [row.numbers("ttft_ms") for row in rounds]
    pooled = np.concatenate([np.asarray(of_round) for of_round in times])
    sums: dict[str, float] = {}
    for row, of_round in zip(rounds, times, strict=True):
        for stage, mean in _stages(row).items():
            sums[stage] = sums.get(stage, 0.0) + mean * len(of_round)
    ttft = Ttft(
        float(pooled.mean()),
        float(np.percentile(pooled, 50)),
        float(np.percentile(pooled, 99)),
        timed_queries=len(pooled),
        stages_ms={stage: total / len(pooled) for stage, total in sums.items()},
        apart=True,
    )
    commands = [*result.commands, *(command for row in rounds for command in _command(row))]
    versions = [*result.versions, *(version for row in rounds for version in _versions(row))]
    unique = tuple(version for n, version in enumerate(versions) if version not in versions[:n])
    return replace(result, ttft=ttft, commands=tuple(dict.fromkeys(commands)), versions=unique)


def _stages(row: Row) -> dict[str, float]:
    stages = row.fields.get("stages_ms")
    if not isinstance(stages, dict):
        return {}
    return {str(stage): float(mean) for stage, mean in stages.items() if is_measure(mean)}


def _command(row: Row) -> tuple[str, ...]:
    command = row.fields.get("command")
    return (command,) if isinstance(command, str) and command else ()


def _versions(row: Row) -> tuple[Mapping[str, Any], ...]:
    versions = row.fields.get("versions")
    return (versions,) if isinstance(versions, dict) and versions else ()
