"""Prefill with reuse: from a prompt's tokens to its first token's logits, and what is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coinkv.boost.cache import ReuseCache
from coinkv.boost.chunks import Chunker
from coinkv.boost.keys import Ids
from coinkv.boost.placing import Placed, place_and_compute, read_parts
from coinkv.boost.plan import Plan, Reuse
from coinkv.boost.result import PlanSummary
from coinkv.kv.block import KVBlock
from coinkv.model.backbone import Backbone
from coinkv.model.clock import StageClock
from coinkv.model.work import Work
from coinkv.repair.base import Repair, Strategy
from coinkv.repair.nothing import Nothing

EVERYTHING = "everything"
"""What results call it when all tokens that could be moved are computed instead."""


@dataclass(frozen=True, eq=False)
class Intent:
    """A plan, and how what it moves is to be repaired."""

    plan: Plan
    repair: Repair
    strategy: str

    def summary(self) -> PlanSummary:
        """The same in figures."""
        plan, spans, end = self.plan, [], 0
        for part in plan.parts:
            spans += [(end, part.start, "computed")] if end < part.start else []
            spans.append((part.start, part.end, "moved" if part.moved else "exact"))
            end = part.end
        return PlanSummary(
            prompt_tokens=len(plan.ids),
            exact=plan.exact_tokens,
            moved=plan.moved_tokens,
            computed=plan.computed_tokens,
            repair=self.strategy,
            repaired=len(self.repair),
            spans=(*spans, (end, len(plan.ids), "computed")),
        )


@dataclass(frozen=True, eq=False)
class FirstToken:
    """A prompt taken as far as its first token's logits: what TTFT measures.

    Attributes:
        intent: what was reused and repaired.
        placed: KV of the whole prompt, the logits, and where the KV came from.
        clock: the stages.
        work: what was computed.
    """

    intent: Intent
    placed: Placed
    clock: StageClock
    work: Work


@dataclass(frozen=True, eq=False)
class Prefiller:
    """What every prefill of one engine works with.

    Attributes:
        backbone: the model.
        cache: what is kept.
        chunker: cuts prompts.
        least_reuse: share of a prompt's tokens below which nothing of it is reused.
    """

    backbone: Backbone
    cache: ReuseCache
    chunker: Chunker
    least_reuse: float

    def intent(
        self, ids: Ids, reuse: Reuse, strategy: Strategy, movable: frozenset[str] | None = None
    ) -> Intent:
        """What would happen to a prompt; no model call.

        Args:
            ids: int32 `[tokens]`.
            reuse: what is allowed.
            strategy: repairs what is moved.
            movable: keys of the runs that may be moved; None: all.
        """
        plan = self.cache.plan(ids, self.chunker.cuts(ids), reuse, movable)
        if len(ids) - plan.computed_tokens < self.least_reuse * len(ids):
            plan = plan.unused()
        if not plan.moved_tokens:
            return Intent(plan, Repair(), Nothing.name)
        chosen = strategy.choice(plan.moved, plan.computed_tokens, len(ids))
        repair = chosen.repair(plan.moved, plan.computed_tokens, len(ids))
        if len(repair) == plan.moved_tokens and repair.narrowing is None:
            # computing everything again is not reuse: the KV is exact, and kept as such
            return Intent(plan.unmoved(), Repair(), EVERYTHING)
        return Intent(plan, repair, chosen.name)

    def first_token(
        self,
        ids: Ids,
        clock: StageClock,
        *,
        answer_tokens: int,
        reuse: Reuse,
        strategy: Strategy,
        movable: frozenset[str] | None = None,
    ) -> FirstToken:
        """Plan, read, place and compute: everything up to the first token's logits.

        Args:
            ids: int32 `[tokens]` of the prompt.
            clock: takes the laps.
            answer_tokens: room left for an answer, as far as the context window has it.
            reuse: what is allowed.
            strategy: repairs what is moved.
            movable: keys of the runs that may be moved; None: all.
        """
        blocks: list[list[KVBlock]] | None = None
        while blocks is None:  # what is evicted between plan and read is planned around
            intent = self.intent(ids, reuse, strategy, movable)
            clock.lap("plan")
            blocks = read_parts(self.cache, intent.plan)
            clock.lap("read")
        room = min(answer_tokens, self.backbone.context_length - len(ids))
        placed = place_and_compute(self.backbone, intent.plan, blocks, intent.repair, room, clock)
        return FirstToken(intent, placed, clock, placed.live.work)

    def keep(self, first: FirstToken, answer_ids: Sequence[int] = ()) -> int:
        """Keep the KV that was computed, the answer's too; returns the tokens kept."""
        plan = first.intent.plan
        if plan.reuse == "none":
            return 0
        ids = np.concatenate([plan.ids, np.array(answer_ids, np.int32)])
        ids = ids[: first.placed.live.length]  # an answer's last token is chosen, never computed
        return self.cache.keep(plan, ids, self.chunker.cuts(ids), first.placed.live)
