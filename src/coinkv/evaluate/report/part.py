"""What a report says of one backbone: choices under each budget, differences, ablations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from coinkv.evaluate.budget import Budget, Choice, choose, usual_index
from coinkv.evaluate.report.ablation import Ablation, ablations, is_ablation
from coinkv.evaluate.report.style import in_order
from coinkv.evaluate.results import Result, by_fingerprint
from coinkv.evaluate.significance import Difference, Question, paired_bootstrap


@dataclass(frozen=True)
class Comparison:
    """Two methods' choices under a budget, compared over the questions of all sets.

    Attributes:
        first: name of a method.
        second: name of the other.
        sets: how many sets both were run on.
        difference: F1 of the first minus F1 of the second.
    """

    first: str
    second: str
    sets: int
    difference: Difference


@dataclass(frozen=True)
class Block:
    """All about one budget.

    Attributes:
        budget: the budget.
        choices: one for each set and method.
        comparisons: of coinrag with each other method.
    """

    budget: Budget
    choices: tuple[Choice, ...]
    comparisons: tuple[Comparison, ...]

    @property
    def methods(self) -> list[str]:
        """Methods in the order of the tables."""
        return in_order(choice.method for choice in self.choices)

    @property
    def sets(self) -> list[str]:
        """Sets in the order of the results."""
        return list(dict.fromkeys(choice.set for choice in self.choices))

    def choice(self, set_: str, method: str) -> Choice:
        """The choice of a method on a set."""
        return next(c for c in self.choices if (c.set, c.method) == (set_, method))


@dataclass(frozen=True)
class Part:
    """The part of a report about one backbone.

    Attributes:
        title: the backbone's name, with its fingerprint where two have the same name.
        fingerprint: of the backbone.
        results: all of them.
        compared: those that compete: all but the ablations.
        blocks: one for each budget.
        ablations: variants beside their plain partners.
        alone: variants whose partner was not run.
    """

    title: str
    fingerprint: str
    results: tuple[Result, ...]
    compared: tuple[Result, ...]
    blocks: tuple[Block, ...]
    ablations: tuple[Ablation, ...]
    alone: tuple[Result, ...]

    @cached_property
    def sets(self) -> list[str]:
        """Sets in the order of the results."""
        return list(dict.fromkeys(result.set for result in self.results))

    @cached_property
    def chosen(self) -> tuple[Result, ...]:
        """The test results that the blocks show, each once."""
        tests = (choice.test for block in self.blocks for choice in block.choices)
        by_run = {(test.set, test.configuration): test for test in tests if test is not None}
        return tuple(by_run.values())


def parts_of(results: Iterable[Result], budgets: Sequence[Budget]) -> tuple[Part, ...]:
    """A part for each backbone, since results of different fingerprints are never compared."""
    grouped = by_fingerprint(results)
    names = {
        fingerprint: " / ".join(dict.fromkeys(result.model for result in of_it))
        for fingerprint, of_it in grouped.items()
    }
    twice = {name for name in names.values() if list(names.values()).count(name) > 1}
    return tuple(
        _part(
            f"{name} ({fingerprint[:12]})" if (name := names[fingerprint]) in twice else name,
            fingerprint,
            of_it,
            budgets,
        )
        for fingerprint, of_it in grouped.items()
    )


def _part(
    title: str, fingerprint: str, results: tuple[Result, ...], budgets: Sequence[Budget]
) -> Part:
    usual = usual_index(results)
    compared = tuple(r for r in results if not is_ablation(r.configuration, usual))
    pairs, alone = ablations(results)
    blocks = []
    for budget in budgets:
        choices = choose(compared, budget)
        blocks.append(Block(budget, choices, _comparisons(choices)))
    return Part(title, fingerprint, results, compared, tuple(blocks), pairs, alone)


def _comparisons(choices: Sequence[Choice]) -> tuple[Comparison, ...]:
    """Coinrag minus each other method, and what is built on coinrag minus coinrag."""
    scores: dict[str, dict[Question, float]] = {}
    for choice in choices:
        of_method = scores.setdefault(choice.method, {})
        if choice.test is not None:
            of_method.update(
                {(choice.set, id_): f1 for id_, f1 in choice.test.per_question_f1.items()}
            )
    compared = []
    for other in in_order(scores.keys() - {"coinrag"}):
        first, second = (other, "coinrag") if other.startswith("coinrag_") else ("coinrag", other)
        common = scores.get(first, {}).keys() & scores.get(second, {}).keys()
        if common:
            difference = paired_bootstrap(scores[first], scores[second])
            sets = len({set_ for set_, _ in common})
            compared.append(Comparison(first, second, sets, difference))
    return tuple(compared)
