"""Training rows: drawn from sets by weight, in an order that nothing else in a file changes."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coinkv.errors import InputError
from coinkv.evaluate.dataset import EvalRow, EvalSet, read_set
from coinkv.train.duplicates import DuplicateReport, duplicates
from coinkv.train.shares import counts


@dataclass(frozen=True)
class Source:
    """A set to train on.

    Attributes:
        name: what `coinkv.evaluate.dataset.read_set` reads: a JSONL file, a folder, a hub set.
        weight: rows drawn from it, relative to the other sets: of a set with weight 2 come twice as
            many as of one with weight 1, however many rows each holds.

    Raises:
        InputError: a blank name, or a weight that is not a number above 0.
    """

    name: str
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise InputError("a set to train on has no name", hint="write NAME or NAME=WEIGHT")
        if not 0 < self.weight < math.inf:
            raise InputError(
                f"its weight {self.weight:g} is not above 0",
                where=self.name,
                hint="or leave it out",
            )

    @classmethod
    def parsed(cls, text: str) -> Source:
        """A source as `NAME` or `NAME=WEIGHT`: what follows the last `=` if it is a number.

        Raises:
            InputError: as the class does.
        """
        name, equals, weight = text.rpartition("=")
        try:
            return cls(name, float(weight)) if equals else cls(text)
        except ValueError:
            return cls(text)


@dataclass(frozen=True)
class TrainingRow:
    """A question to train on, and the set it is of.

    Attributes:
        set_name: as `EvalSet.name`: of a file, its name without `.jsonl` and `.gz`.
        row: with at least one answer and one passage.
    """

    set_name: str
    row: EvalRow

    @property
    def key(self) -> tuple[str, str]:
        """What names a row: its set and its id, since ids may repeat between sets."""
        return self.set_name, self.row.id


@dataclass(frozen=True)
class TrainingData:
    """The rows of a run.

    Attributes:
        rows: what an epoch goes through once: set after set by name, each in its order. Those of a
            set are the first of its usable rows in that order.
        held_out: rows kept out of `rows` for the development loss, in the same order.
        facts: JSON-ready: `seed`, `rows`, `held_out`, `against` (evaluation rows by set) and, a
            set each, `sets`: `set`, `weight`, `read`, `left_out` (rows by reason), `usable`,
            `unmarked` (those of them that mark no passage as holding the answer), `drawn`,
            `held_out`.
        duplicates: which usable rows stand in the sets of `against`; they are in neither.
        seed: of both orders, the one in a set and the one in an epoch.
    """

    rows: tuple[TrainingRow, ...]
    held_out: tuple[TrainingRow, ...]
    facts: Mapping[str, Any]
    duplicates: DuplicateReport
    seed: int

    def epoch(self, number: int) -> tuple[TrainingRow, ...]:
        """All rows in the order of an epoch: another for each, the same on every machine."""
        return tuple(
            sorted(self.rows, key=lambda each: _digest(self.seed, f"epoch {number}", *each.key))
        )


def training_rows(
    sources: Sequence[Source],
    *,
    rows: int | None,
    seed: int,
    against: Sequence[str] = (),
    held_out: int = 0,
) -> TrainingData:
    """Read the sets and draw what an epoch goes through; nothing is repeated in it.

    Rows without answers or passages are left out, as are those that stand in an evaluation set. The
    others of a set are ordered by the SHA-256 of `<seed>:<id>`: the first ones are drawn, the last
    ones held out. So neither other sets nor further rows of a file change that order; a row without
    an id is known by its line, though.

    Args:
        sources: at least one.
        rows: how many in all. Each set gives its weight's share of them, rounded; one that has
            fewer gives all, and the others share the rest. With None, every usable row where all
            weights are equal; else as many as the weights allow before the first set runs out.
        seed: of the orders.
        against: evaluation sets, as `read_set` takes them (`coinkv.train.duplicates`).
        held_out: rows for the development loss, shared among the sets as the drawn rows are.

    Raises:
        InputError: no set or no such set, two of one name, a number that is out of range, or a set
            of which no row is left.
    """
    _require(sources, rows, held_out)
    read = sorted(((read_set(each.name), each.weight) for each in sources), key=lambda s: s[0].name)
    require_distinct([training_set.name for training_set, _ in read], "sets to train on")
    report = duplicates(
        [_trainable(training_set) for training_set, _ in read], [read_set(name) for name in against]
    )
    pools = [_pool(training_set, weight, report, seed) for training_set, weight in read]
    drawn, held = counts(
        rows, held_out, [pool.weight for pool in pools], [len(pool.rows) for pool in pools]
    )
    return TrainingData(
        rows=tuple(row for pool, n in zip(pools, drawn, strict=True) for row in pool.rows[:n]),
        held_out=tuple(
            row
            for pool, n in zip(pools, held, strict=True)
            for row in pool.rows[len(pool.rows) - n :]
        ),
        facts={
            "seed": seed,
            "rows": sum(drawn),
            "held_out": sum(held),
            "against": report.against,
            "sets": [
                pool.facts | {"drawn": n, "held_out": m}
                for pool, n, m in zip(pools, drawn, held, strict=True)
            ],
        },
        duplicates=report,
        seed=seed,
    )


@dataclass(frozen=True)
class _Pool:
    """The usable rows of a set, in its order."""

    weight: float
    rows: tuple[TrainingRow, ...]
    facts: dict[str, Any]


def _pool(training_set: EvalSet, weight: float, report: DuplicateReport, seed: int) -> _Pool:
    rows = [TrainingRow(training_set.name, row) for row in _trainable(training_set).rows]
    usable = sorted(
        (each for each in rows if each.key not in report.kinds),
        key=lambda each: _digest(seed, each.row.id),
    )
    reasons = Counter(
        "no passages" if row.answers else "no answers"
        for row in training_set.rows
        if not (row.answers and row.passages)
    )
    reasons += Counter(
        f"in an evaluation set ({report.kinds[each.key]})"
        for each in rows
        if each.key in report.kinds
    )
    if not usable:
        why = ", ".join(f"{count:,} {reason}" for reason, count in reasons.items())
        raise InputError(
            f"no row of it can be trained on: {why}",
            where=training_set.name,
            hint="leave the set out, or train on rows that have answers and passages and are in no "
            "evaluation set",
        )
    facts = {
        "set": training_set.name,
        "weight": weight,
        "read": len(training_set.rows),
        "left_out": dict(reasons),
        "usable": len(usable),
        "unmarked": sum(
            not any(passage.is_supporting for passage in each.row.passages) for each in usable
        ),
    }
    return _Pool(weight, tuple(usable), facts)


def _trainable(training_set: EvalSet) -> EvalSet:
    rows = tuple(row for row in training_set.rows if row.answers and row.passages)
    return EvalSet(training_set.name, rows)


def _digest(*parts: object) -> bytes:
    text = ":".join(map(str, parts))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def _require(sources: Sequence[Source], rows: int | None, held_out: int) -> None:
    if not sources:
        raise InputError("no set to train on", hint="name a JSONL file or a hub set")
    if rows is not None and rows < 1:
        raise InputError(f"{rows} rows are none to train on", hint="give at least 1")
    if held_out < 0:
        raise InputError(f"{held_out} rows cannot be held out", hint="give 0 or more")


def require_distinct(names: Sequence[str], what: str) -> None:
    """Refuse two sets of one name.

    Raises:
        InputError: there are two.
    """
    for name, count in Counter(names).items():
        if count > 1:
            raise InputError(
                f"{count} {what} have this name",
                where=name,
                hint="give each set once, and each file a name of its own",
            )
