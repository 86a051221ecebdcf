"""The best configuration of each method within a latency budget: chosen on dev, shown on test."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from coinkv.errors import InputError
from coinkv.evaluate.configuration import Configuration
from coinkv.evaluate.results import Result, require_one_fingerprint

YARDSTICK = "standard_rag"
"""The method whose P99 at one chunk a relative budget is a multiple of: machines differ."""
_BUDGET = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(ms|s|x)")


@dataclass(frozen=True)
class Budget:
    """A limit to P99 TTFT: absolute, relative to full prefill of one chunk, or none.

    Attributes:
        milliseconds: the limit itself.
        multiple: the limit as a multiple of `standard_rag`'s P99 at k_c = 1 in the same results,
            set and half.
    """

    milliseconds: float | None = None
    multiple: float | None = None

    @classmethod
    def parse(cls, text: str) -> Budget:
        """A budget as typed: `100ms`, `0.1 s`, `1x`, `none`.

        Raises:
            InputError: it is none of these, or not above 0.
        """
        typed = text.strip().lower()
        if typed == "none":
            return cls()
        parts = _BUDGET.fullmatch(typed)
        value = float(parts[1]) if parts else 0.0
        if parts is None or not 0 < value < math.inf:
            raise InputError(f"{text!r} is no budget", hint="use such as 100ms, 1x or none")
        if parts[2] == "x":
            return cls(multiple=value)
        return cls(milliseconds=value * (1000 if parts[2] == "s" else 1))

    @property
    def label(self) -> str:
        """As a heading: `P99 ≤ 100 ms`."""
        if self.milliseconds is not None:
            return f"P99 ≤ {self.milliseconds:g} ms"
        if self.multiple is not None:
            return f"P99 ≤ {self.multiple:g} × {YARDSTICK} at k_c = 1"
        return "No latency limit"

    @property
    def text(self) -> str:
        """As typed: `100ms`, `1x`, `none`."""
        if self.milliseconds is not None:
            return f"{self.milliseconds:g}ms"
        return "none" if self.multiple is None else f"{self.multiple:g}x"

    def limit_ms(self, results: Iterable[Result], set_: str, half: str) -> float | None:
        """The limit on a half of a set: infinite where there is none, None where it is unknown."""
        if self.milliseconds is not None:
            return self.milliseconds
        if self.multiple is None:
            return math.inf
        yardstick = _yardstick(results, set_, half)
        return None if yardstick is None else self.multiple * yardstick.ttft.p99_ms


@dataclass(frozen=True)
class Choice:
    """The configuration of a method for a set under a budget.

    Attributes:
        budget: the budget.
        set: name of the set of questions.
        method: name of the method.
        dev_limit_ms: the budget on the dev half, infinite for none, None if unknown.
        test_limit_ms: the budget on the test half.
        dev: what was chosen, on the dev half; None if nothing could be.
        test: the same configuration on the test half; None if it was not run there.
        why_not: why there is no `dev` or no `test`, None if both are there.
    """

    budget: Budget
    set: str
    method: str
    dev_limit_ms: float | None
    test_limit_ms: float | None
    dev: Result | None
    test: Result | None
    why_not: str | None

    @property
    def kept_on_test(self) -> bool | None:
        """Whether the P99 measured on the test half is within its budget; None if unknown."""
        if self.test is None or self.test_limit_ms is None:
            return None
        return self.test.ttft.p99_ms <= self.test_limit_ms


def choose(results: Sequence[Result], budget: Budget) -> tuple[Choice, ...]:
    """For each set and method the configuration of best F1 on dev within the budget on dev.

    Of equal F1 the lower P99, then the lower Len, then the label decides. The paper chose on the
    questions it reported (arXiv 2608.07458, appendix E); here the test half has no say.

    Args:
        results: of one backbone.
        budget: the limit to P99 TTFT.

    Returns:
        A choice for each set and method that occur, in the order in which they first do.

    Raises:
        InputError: the results have more than one fingerprint.
    """
    require_one_fingerprint(results)
    methods = dict.fromkeys(result.method for result in results)
    sets = dict.fromkeys(result.set for result in results)
    return tuple(_choice(results, budget, set_, method) for set_ in sets for method in methods)


def usual_index(results: Iterable[Result]) -> str | None:
    """The label of the index that most results were made on, the first of equals."""
    counts = Counter(result.configuration.index for result in results)
    return max(counts, key=lambda label: counts[label], default=None)


def _choice(results: Sequence[Result], budget: Budget, set_: str, method: str) -> Choice:
    limit = budget.limit_ms(results, set_, "dev")
    of_method = [result for result in results if (result.set, result.method) == (set_, method)]
    candidates = [result for result in of_method if result.half == "dev"]
    within = [r for r in candidates if limit is not None and r.ttft.p99_ms <= limit]
    dev = min(within, key=_rank, default=None)
    test = None if dev is None else _same_on(of_method, dev.configuration, "test")
    why_not = None
    if not candidates:
        why_not = "not run on the dev half"
    elif limit is None:
        why_not = f"the budget is unknown: {YARDSTICK} was not run at k_c = 1 on the dev half"
    elif dev is None:
        fastest = min(result.ttft.p99_ms for result in candidates)
        why_not = f"nothing within {limit:.0f} ms: the fastest P99 is {fastest:.0f} ms"
    elif test is None:
        why_not = f"its choice ({dev.configuration.label}) was not run on the test half"
    test_limit = budget.limit_ms(results, set_, "test")
    return Choice(budget, set_, method, limit, test_limit, dev, test, why_not)


def _rank(result: Result) -> tuple[float, float, float, str]:
    return (-result.f1, result.ttft.p99_ms, result.len_tokens, result.configuration.label)


def _same_on(results: Iterable[Result], configuration: Configuration, half: str) -> Result | None:
    for result in results:
        if (result.configuration, result.half) == (configuration, half):
            return result
    return None


def _yardstick(results: Iterable[Result], set_: str, half: str) -> Result | None:
    plain = [
        result
        for result in results
        if (result.set, result.half, result.method) == (set_, half, YARDSTICK)
        and result.configuration.k_chunks == 1
        and not result.configuration.options
        and result.configuration.adapter is None
    ]
    usual = usual_index(plain)
    return next((result for result in plain if result.configuration.index == usual), None)
