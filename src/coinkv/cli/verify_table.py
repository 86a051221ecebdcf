"""A report of `coinkv boost verify` as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

from coinkv.cli.output import milliseconds, results

if TYPE_CHECKING:
    from coinkv.boost.agreement import Agreement
    from coinkv.boost.verify import StrategyReport, VerifyReport

_HEADINGS = ("moved in", "top-1", "gap", "KL", "same", "alike", "TTFT", "of full", "safe")


def print_report(report: VerifyReport) -> None:
    """Print what was asked, a row a strategy, and the verdict."""
    _line(
        f"{report.prompts} prompts, {report.prompt_tokens} tokens; full prefill: first token "
        f"after {milliseconds(report.full_ttft_seconds)}"
    )
    if report.tested:
        table = Table("repair", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
        for heading in _HEADINGS:
            table.add_column(heading, justify="right")
        for each in report.strategies:
            safe = "yes" if report.is_safe(each) else "no"
            table.add_row(*_cells(each), safe if each.moved.prompts else "")
        results.print(table)
    exact = report.strategies[0].exact
    if exact.prompts:
        _line(
            f"exact reuse only: {exact.prompts} prompts, largest gap {exact.largest_gap:.1e}, "
            f"same answers {exact.same_answers:.0%}"
        )
    _line(report.verdict)


def _line(text: str) -> None:
    results.print(text, highlight=False, markup=False, soft_wrap=True)


def _cells(each: StrategyReport) -> list[str]:
    return [
        each.strategy,
        str(each.moved.prompts),
        *_agreement(each.moved),
        milliseconds(each.ttft_seconds),
        f"{each.ttft_over_full:.0%}",
    ]


def _agreement(moved: Agreement) -> list[str]:
    if not moved.prompts:
        return [""] * 5
    return [
        f"{moved.top1:.0%}",
        f"{moved.largest_gap:.2f}",
        f"{moved.mean_kl:.4f}",
        f"{moved.same_answers:.0%}",
        f"{moved.mean_common_tokens:.1f}",
    ]
