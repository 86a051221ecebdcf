"""Verify: on prompts of the user's own, which repair is close enough to computing everything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean
from typing import Any

import numpy as np

from coinkv.boost.agreement import Agreement, Answered
from coinkv.boost.keys import Ids
from coinkv.boost.plan import Reuse
from coinkv.boost.prefill import Prefiller
from coinkv.boost.result import ReuseSplit
from coinkv.boost.stream import BoostStream
from coinkv.errors import InputError
from coinkv.model.backbone import Backbone
from coinkv.model.chat import AnyPrompt, prompt_ids, require_list
from coinkv.model.clock import StageClock
from coinkv.model.decode import Sampling
from coinkv.repair.base import Strategy
from coinkv.repair.nothing import Nothing

VERIFIED = ("none", "selective", "epic", "cacheblend", "auto")
LEAST_TOP1 = 0.97
LEAST_ANSWERS = 0.9
_WARM_UP_TOKENS = 16

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class StrategyReport:
    """What one repair strategy did.

    Attributes:
        strategy: its name, with options where a strategy and no name was given.
        moved: agreement of the prompts that reused moved KV: these can be wrong.
        exact: agreement of those that reused exactly and nothing else. They differ by rounding,
            and by what a codec loses.
        used: for the moved prompts, how often each strategy was used; `auto` chooses.
        reuse: where the KV of all prompts came from.
        ttft_seconds: mean time to the first token over all prompts.
        ttft_over_full: the same as a share of full prefill's.
    """

    strategy: str
    moved: Agreement
    exact: Agreement
    used: dict[str, int] = field(hash=False)
    reuse: ReuseSplit
    ttft_seconds: float
    ttft_over_full: float


@dataclass(frozen=True)
class VerifyReport:
    """What `KVBoost.verify` found.

    Attributes:
        prompts: how many there were.
        prompt_tokens: their tokens.
        answer_tokens: most tokens of an answer.
        full_ttft_seconds: mean time to the first token when everything is computed.
        strategies: one report each.
        least_top1: top-1 agreement that counts as safe.
        least_answers: share of same answers that counts as safe.
    """

    prompts: int
    prompt_tokens: int
    answer_tokens: int
    full_ttft_seconds: float
    strategies: tuple[StrategyReport, ...]
    least_top1: float
    least_answers: float

    @property
    def tested(self) -> bool:
        """Whether any prompt reused moved KV: without one, nothing was tested."""
        return any(each.moved.prompts for each in self.strategies)

    @property
    def safe(self) -> str | None:
        """The fastest strategy whose agreement on moved prompts reaches both thresholds."""
        safe = [each for each in self.strategies if self.is_safe(each)]
        return min(safe, key=lambda each: each.ttft_seconds).strategy if safe else None

    @property
    def verdict(self) -> str:
        """What follows, in one line."""
        if not self.tested:
            return "nothing was tested: no prompt reused KV that was made behind another text"
        if self.safe is None:
            return "none is safe enough: use reuse='exact'"
        return f"{self.safe} is safe enough, and the fastest that is"

    def is_safe(self, strategy: StrategyReport) -> bool:
        """Whether a strategy was tested and reaches both thresholds."""
        top1, answers = strategy.moved.top1, strategy.moved.same_answers
        if top1 is None or answers is None:
            return False
        return top1 >= self.least_top1 and answers >= self.least_answers

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON-ready facts, times in milliseconds."""
        facts = asdict(self)
        facts["full_ttft_ms"] = 1000 * facts.pop("full_ttft_seconds")
        for each, report in zip(facts["strategies"], self.strategies, strict=True):
            each["ttft_ms"] = 1000 * each.pop("ttft_seconds")
            each["safe"] = self.is_safe(report)
        return {**facts, "tested": self.tested, "safe": self.safe, "verdict": self.verdict}


def verify(
    prefiller: Prefiller,
    prompts: Sequence[AnyPrompt],
    strategies: Mapping[str, Strategy],
    *,
    answer_tokens: int,
    least_top1: float,
    least_answers: float,
    on_progress: Progress | None = None,
) -> VerifyReport:
    """Answer prompts by full prefill, and with reuse under each strategy; see `KVBoost.verify`.

    Args:
        prefiller: of the engine whose options are verified; what it keeps is not touched.
        prompts: in the order of the workload.
        strategies: by name.
        answer_tokens: most tokens of an answer.
        least_top1: top-1 agreement that counts as safe.
        least_answers: share of same answers that counts as safe.
        on_progress: told of a stage, its answers so far and all of them.

    Raises:
        InputError: a prompt is empty or too long, there is none, or a number is out of range.
    """
    _require(strategies, answer_tokens, least_top1, least_answers)
    every = _all_ids(prefiller.backbone, prompts)
    tell = on_progress or (lambda stage, done, total: None)
    # a process's first pass is its slowest
    _answers(prefiller, [every[0][:_WARM_UP_TOKENS]], Nothing(), "none", 1, lambda done: None)
    full = _answers(
        prefiller,
        every,
        Nothing(),
        "none",
        answer_tokens,
        _told(tell, "full prefill", len(every)),
    )
    reports = []
    for name, strategy in strategies.items():
        told = _told(tell, name, len(every))
        reused = _answers(prefiller, every, strategy, "all", answer_tokens, told)
        reports.append(_report(name, full, reused))
    return VerifyReport(
        prompts=len(every),
        prompt_tokens=sum(map(len, every)),
        answer_tokens=answer_tokens,
        full_ttft_seconds=_ttft(full),
        strategies=tuple(reports),
        least_top1=least_top1,
        least_answers=least_answers,
    )


def _require(
    strategies: Mapping[str, Strategy], answer_tokens: int, least_top1: float, least_answers: float
) -> None:
    if not strategies:
        raise InputError("no strategy is given", hint=f"use some of {', '.join(VERIFIED)}")
    if answer_tokens < 1:
        raise InputError(f"answer_tokens is {answer_tokens}", hint="use 1 or more")
    for name, share in (("least_top1", least_top1), ("least_answers", least_answers)):
        if not 0 <= share <= 1:
            raise InputError(f"{name} is {share}", hint="use a share from 0 to 1")


def _all_ids(backbone: Backbone, prompts: Sequence[AnyPrompt]) -> list[Ids]:
    """Every prompt's tokens, so that a bad one is refused before the long work begins."""
    require_list(prompts)
    if not prompts:
        raise InputError("there is no prompt to verify", hint="give one or more")
    every = []
    for number, prompt in enumerate(prompts, 1):
        try:
            ids = prompt_ids(backbone, prompt)
            backbone.require_room(len(ids), "it", hint="shorten it")
        except InputError as error:
            raise InputError(error.what, where=f"prompt {number}", hint=error.hint) from error
        every.append(np.array(ids, np.int32))
    return every


def _answers(
    prefiller: Prefiller,
    every: Sequence[Ids],
    strategy: Strategy,
    reuse: Reuse,
    answer_tokens: int,
    told: Callable[[int], None],
) -> list[Answered]:
    """Prompts answered one after another over a cache of their own, in memory."""
    own = replace(prefiller, cache=prefiller.cache.emptied())
    answered = []
    try:
        for done, ids in enumerate(every, 1):
            first = own.first_token(
                ids,
                StageClock(own.backbone.synchronize),
                answer_tokens=answer_tokens,
                reuse=reuse,
                strategy=strategy,
            )
            stream = BoostStream(own, first, Sampling(max_tokens=answer_tokens))
            for _ in stream:
                pass
            answered.append(Answered(stream.result, first.placed.logits[0].float().cpu()))
            told(done)
    finally:
        own.cache.close()
    return answered


def _told(tell: Progress, stage: str, total: int) -> Callable[[int], None]:
    return lambda done: tell(stage, done, total)


def _report(name: str, full: Sequence[Answered], reused: Sequence[Answered]) -> StrategyReport:
    moved, exact, used, reuse = [], [], Counter[str](), ReuseSplit()
    for pair in zip(full, reused, strict=True):
        split = pair[1].result.reuse
        reuse += split
        if split.moved + split.repaired:
            moved.append(pair)
            used[pair[1].result.repair] += 1
        elif split.exact:
            exact.append(pair)
    return StrategyReport(
        strategy=name,
        moved=Agreement.of(moved),
        exact=Agreement.of(exact),
        used=dict(used),
        reuse=reuse,
        ttft_seconds=_ttft(reused),
        ttft_over_full=_ttft(reused) / _ttft(full),
    )


def _ttft(answered: Sequence[Answered]) -> float:
    return fmean(each.result.ttft_seconds for each in answered)
