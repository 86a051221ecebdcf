"""What `coinkv train` prints: the rows it would learn from, and what a run came to."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from coinkv.cli.output import console, counted, print_json, results
from coinkv.errors import CoinKVError

if TYPE_CHECKING:
    from coinkv.train.options import RunRows
    from coinkv.train.run import TrainingReport

_SHOWN_DUPLICATES = 10


def print_rows(rows: RunRows, *, json: bool) -> None:
    """What would be learned from and asked, and which rows were left out."""
    data, dev = rows.data, Counter(row.set_name for row in rows.dev)
    if json:
        facts = {"data": dict(data.facts), "duplicates": data.duplicates.facts}
        print_json({**facts, "development": dict(dev)})
        return
    table = Table("set", "read", "left out", "usable", "drawn", "held out", title="Training rows")
    for each in data.facts["sets"]:
        reasons = ", ".join(f"{count} {reason}" for reason, count in each["left_out"].items())
        counts = [str(each[name]) for name in ("usable", "drawn", "held_out")]
        table.add_row(each["set"], str(each["read"]), reasons or "0", *counts)
    results.print(table)
    for each in data.facts["sets"]:
        if each["unmarked"]:
            _say(
                f"{each['set']}: {each['unmarked']:,} usable rows mark no passage as holding the "
                "answer (is_supporting), so nothing can be withheld from them (--raft)."
            )
    if data.facts["against"]:
        for line in data.duplicates.lines(_SHOWN_DUPLICATES):
            _say(line)
    for name, count in dev.items():
        _say(f"{counted(count, 'development question')} of {name}")


def draw_curves(folder: Path) -> list[Path]:
    """The curves' files; a line says why where there are none: a run is whole without them."""
    from coinkv.train.curves import draw

    try:
        return draw(folder)
    except CoinKVError as error:
        why = str(error)
    except KeyboardInterrupt:
        why = "interrupted"
    line = f"no curves were drawn: {why}"
    console.print(line, style="yellow", markup=False, highlight=False, soft_wrap=True)
    return []


def print_report(report: TrainingReport, pictures: list[Path]) -> None:
    """What a run came to, where that lies, and the commands to answer with it."""
    from coinkv.train.card import commands

    learned = report.learned
    before = "Finished before: " if report.was_finished else ""
    ended = ", ended early" if learned.stopped_early else ""
    _say(
        f"{before}{counted(learned.steps, 'step')}{ended}, "
        f"{learned.answer_tokens:,} answer tokens in {learned.seconds:.0f} s."
    )
    if learned.first is not None and learned.best is not None:
        first, best = learned.first, learned.best
        _say(
            f"Development ({counted(best.questions, 'question')}): loss {first.loss:.2f} to "
            f"{best.loss:.2f}, F1 {first.f1:.1f} to {best.f1:.1f} at step {learned.best_step:,}."
        )
        if not learned.best_step:
            _say("No evaluation was better than the first: what is written has learned nothing.")
    _say(f"Written: {report.result}")
    if pictures:
        _say(f"Curves: {', '.join(str(path) for path in pictures if path.suffix == '.svg')}")
    build, ask = commands(report.card, str(report.result))
    if "scope" not in report.card:
        _say(f"Build with it: {build}")
    _say(f"Answer with it: {ask}")


def _say(line: str) -> None:
    results.print(line, markup=False, highlight=False, soft_wrap=True)
