"""The tables of a report: the paper's table 3, all measures, ablations."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from coinkv.evaluate.report.ablation import Ablation
from coinkv.evaluate.report.part import Block
from coinkv.evaluate.report.style import in_order
from coinkv.evaluate.report.table import NOTHING, Cell, Table, number, ranked
from coinkv.evaluate.results import Result
from coinkv.evaluate.significance import Difference

OVER_BUDGET = "†"
_NOTE = (
    "Column # is k_c, k and options: the configuration of best F1 on the dev half within the "
    "budget. All numbers are of the test half: TTFT and P99 in ms, Len in tokens. Best F1 bold, "
    "second underlined."
)


def table_3(block: Block) -> Table:
    """Methods by sets under a budget, with averages over the sets (paper's table 3).

    A method has averages only where it was run on the test half of every set: averages over
    different sets cannot be compared.
    """
    methods, sets = block.methods, block.sets
    columns: list[list[Cell]] = []  # a list of cells for each column, one a method
    for set_ in sets:
        columns += _set_columns(block, set_)
    tests = [[block.choice(set_, method).test for set_ in sets] for method in methods]
    columns += _average_columns(tests) if len(sets) > 1 else []
    over = any(cell.text.endswith(OVER_BUDGET) for column in columns for cell in column)
    note = f"{_NOTE} {OVER_BUDGET} over the budget on the test half." if over else _NOTE
    measures = ("F1", "TTFT", "P99", "Len")
    averages = (("Average", len(measures)),) if len(sets) > 1 else ()
    return Table(
        title=block.budget.label,
        groups=(("", 1), *((set_, 1 + len(measures)) for set_ in sets), *averages),
        columns=("Method", *("#", *measures) * len(sets), *(measures if averages else ())),
        rows=tuple(
            (Cell(method), *(column[row] for column in columns))
            for row, method in enumerate(methods)
        ),
        note=note,
    )


def _set_columns(block: Block, set_: str) -> list[list[Cell]]:
    choices = [block.choice(set_, method) for method in block.methods]
    tests = [choice.test for choice in choices]
    p99 = [number(test.ttft.p99_ms if test else None, 0) for test in tests]
    return [
        [Cell(choice.dev.configuration.label if choice.dev else NOTHING) for choice in choices],
        ranked([test.f1 if test else None for test in tests]),
        [number(test.ttft.mean_ms if test else None, 0) for test in tests],
        [
            Cell(cell.text + OVER_BUDGET) if choice.kept_on_test is False else cell
            for cell, choice in zip(p99, choices, strict=True)
        ],
        [number(test.len_tokens if test else None, 0) for test in tests],
    ]


def _average_columns(tests: Sequence[Sequence[Result | None]]) -> list[list[Cell]]:
    whole = [[t for t in row if t is not None] if None not in row else [] for row in tests]
    return [
        ranked([mean(t.f1 for t in row) if row else None for row in whole]),
        [number(mean(t.ttft.mean_ms for t in row) if row else None, 0) for row in whole],
        [number(mean(t.ttft.p99_ms for t in row) if row else None, 0) for row in whole],
        [number(mean(t.len_tokens for t in row) if row else None, 0) for row in whole],
    ]


def all_measures(title: str, results: Sequence[Result]) -> Table:
    """Every measure of results, one row each, by set, half, method and cost."""
    order = {method: place for place, method in enumerate(in_order(r.method for r in results))}
    sets = list(dict.fromkeys(result.set for result in results))
    rows = sorted(
        results,
        key=lambda r: (sets.index(r.set), r.half, order[r.method], r.ttft.p99_ms, r.len_tokens),
    )
    stages = list(dict.fromkeys(stage for result in rows for stage in result.ttft.stages_ms))
    return Table(
        title=title,
        groups=(
            ("", 4),
            ("Answers", 6),
            ("TTFT (ms)", 4),
            *((("Mean by stage (ms)", len(stages)),) if stages else ()),
            ("Cost", 4),
        ),
        columns=(
            *("Method", "#", "Set", "Half"),
            *("n", "F1", "EM", "evidence recall %", "answer recall %", "tokens/s decoded"),
            *("mean", "P50", "P99", "timed"),
            *stages,
            *("Len", "KV MB", "GFLOP", "k layer-tokens"),
        ),
        rows=tuple(_measures(result, stages) for result in rows),
        texts=4,
        note=(
            'n questions were answered; "timed" is the number of queries behind the times, with * '
            "where they were timed while they were answered. Recalls are the share of gold "
            "passages and of answer strings inside the context. KV is what the context holds; "
            "FLOP and layer-tokens are the live computation of a question's prefill."
        ),
    )


def _measures(result: Result, stages: Sequence[str]) -> tuple[Cell, ...]:
    ttft = result.ttft
    return (
        Cell(result.method),
        Cell(result.configuration.label),
        Cell(result.set),
        Cell(result.half),
        number(result.questions, 0),
        number(result.f1),
        number(result.exact_match),
        number(result.evidence_recall, 0, 100),
        number(result.answer_recall, 0, 100),
        number(result.decode_tokens_per_second),
        number(ttft.mean_ms, 0),
        number(ttft.p50_ms, 0),
        number(ttft.p99_ms, 0),
        Cell(f"{ttft.timed_queries:,}" if ttft.apart else f"{ttft.timed_queries:,}*"),
        *(number(ttft.stages_ms.get(stage)) for stage in stages),
        number(result.len_tokens, 0),
        number(result.kv_bytes, 1, 1e-6),
        number(result.flops, 1, 1e-9),
        number(result.layer_tokens, 1, 1e-3),
    )


def ablation_table(shown: Sequence[Ablation]) -> Table:
    """Variants beside their plain partners: what a change did to F1, TTFT and Len."""
    return Table(
        title="Ablations",
        groups=(("", 5), ("F1", 5), ("P99 (ms)", 2), ("Len", 2)),
        columns=(
            *("Change", "Method", "#", "Set", "Half"),
            *("plain", "changed", "difference", "95 % CI", "p"),
            *("plain", "changed") * 2,
        ),
        rows=tuple(_ablation(ablation) for ablation in shown),
        texts=5,
        note=(
            "Each variant beside the same configuration without the change; the difference is "
            "changed minus plain, with a paired bootstrap over the questions. Rows of several sets "
            "pool their questions and average the other columns over the sets."
        ),
    )


def _ablation(ablation: Ablation) -> tuple[Cell, ...]:
    plain = [before for before, _ in ablation.pairs]
    changed = [after for _, after in ablation.pairs]
    difference = ablation.difference
    return (
        Cell(ablation.change),
        Cell(ablation.method),
        Cell(ablation.label),
        Cell(plain[0].set if len(plain) == 1 else f"all {len(plain)}"),
        Cell("+".join(dict.fromkeys(result.half for result in plain))),
        number(mean(result.f1 for result in plain)),
        number(mean(result.f1 for result in changed)),
        Cell(f"{difference.mean:+.1f}"),
        Cell(interval(difference)),
        Cell(p_value(difference)),
        number(mean(result.ttft.p99_ms for result in plain), 0),
        number(mean(result.ttft.p99_ms for result in changed), 0),
        number(mean(result.len_tokens for result in plain), 0),
        number(mean(result.len_tokens for result in changed), 0),
    )


def interval(difference: Difference) -> str:
    """The confidence interval as text: `-0.6 to +4.9`."""
    return f"{difference.low:+.1f} to {difference.high:+.1f}"


def p_value(difference: Difference) -> str:
    """The p value as text: `0.13`, `< 0.001`."""
    if difference.p < 0.001:
        return "< 0.001"
    return f"{difference.p:.2f}" if difference.p >= 0.1 else f"{difference.p:.3f}"
