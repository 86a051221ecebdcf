"""Placing: a plan's KV put where it belongs, and the rest computed."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from coinkv.boost.cache import ReuseCache
from coinkv.boost.plan import Part, Plan
from coinkv.boost.result import ReuseSplit
from coinkv.kv.block import KVBlock
from coinkv.model.backbone import Backbone
from coinkv.model.clock import StageClock
from coinkv.model.fill import LiveCache, fill
from coinkv.model.narrow import Narrowing
from coinkv.repair.base import Repair, ranges

PASS_TOKENS = 512
"""Tokens of one pass where a prompt is computed in several."""


@dataclass(frozen=True, eq=False)
class Placed:
    """A prompt whose KV is complete.

    Attributes:
        live: KV of the whole prompt at positions 0 on, in order, with room for an answer.
        logits: `[1, vocabulary]` float32 behind the prompt.
        split: where the KV came from.
    """

    live: LiveCache
    logits: torch.Tensor
    split: ReuseSplit


def read_parts(cache: ReuseCache, plan: Plan) -> list[list[KVBlock]] | None:
    """KV of all parts of a plan; None when some of it is kept no longer."""
    read = []
    for part in plan.parts:
        blocks = cache.read(part)
        if blocks is None:
            return None
        read.append(blocks)
    return read


def place_and_compute(
    backbone: Backbone,
    plan: Plan,
    blocks: list[list[KVBlock]],
    repair: Repair,
    room: int,
    clock: StageClock,
) -> Placed:
    """Put reused KV into place and compute holes, repaired tokens and the last token.

    One pass does it where few tokens are live, or where later layers leave some of them out. Many
    live tokens behind reused ones go in passes of `PASS_TOKENS`, in order: with a mask, attention
    computes what it hides, too, and a pass over all of them would hide half.

    Args:
        backbone: the model.
        plan: of the prompt.
        blocks: KV of its parts.
        repair: which moved tokens to compute again.
        room: tokens to leave free for an answer.
        clock: takes the laps `compose` and `prefill`.
    """
    site = _Site(backbone, plan, LiveCache.for_backbone(backbone, len(plan.ids) + room), clock)
    at_once = repair.narrowing is not None or not plan.parts
    for part, parts_blocks in zip(plan.parts, blocks, strict=True):
        site.reserve_to(part.start, at_once=at_once)
        site.place(part, parts_blocks)
        here = (part.start <= repair.positions) & (repair.positions < part.end)
        site.pending += [] if at_once else repair.positions[here].tolist()
    site.reserve_to(len(plan.ids), at_once=at_once)
    if at_once:
        # narrowing takes the rows that may be left out first
        site.pending = [*repair.positions.tolist(), *ranges(plan.holes).tolist()]
    logits = site.compute(len(site.pending), repair.narrowing)
    return Placed(site.live, logits, _split(plan, repair, site.live, backbone.shape.layers))


class _Site:
    """A prompt under construction.

    Attributes:
        live: its KV so far.
        pending: positions that are to be computed next.
    """

    def __init__(self, backbone: Backbone, plan: Plan, live: LiveCache, clock: StageClock) -> None:
        self.live = live
        self.pending: list[int] = []
        self._backbone, self._plan, self._clock = backbone, plan, clock

    def reserve_to(self, end: int, *, at_once: bool) -> None:
        """Take slots up to a position for tokens that nobody has computed."""
        if at_once:
            self.live.reserve(torch.arange(self.live.length, end))
            return
        while self.live.length < end:
            stop = min(end, self.live.length + PASS_TOKENS // 2)
            self.pending += range(self.live.length, stop)
            self.live.reserve(torch.arange(self.live.length, stop))
            # never a short pass at the end: it would cost nearly as much as a full one
            if len(self.pending) >= PASS_TOKENS * 3 // 2:
                self.compute(PASS_TOKENS)

    def place(self, part: Part, blocks: list[KVBlock]) -> None:
        """Put a part's KV behind what is there, moved to its place."""
        start = self.live.length
        for block in blocks:
            self.live.append(block)
        if part.moved:
            self.live.move(start, torch.arange(start, self.live.length), self._backbone.rope)

    def compute(self, count: int, narrowing: Narrowing | None = None) -> torch.Tensor:
        """Compute the first so many of what is pending; the last one's logits `[1, vocabulary]`."""
        self._clock.lap("compose")
        positions, self.pending = torch.tensor(self.pending[:count]), self.pending[count:]
        token_ids = self._plan.ids[positions.numpy()].tolist()
        logits = fill(self._backbone, self.live, token_ids, positions, narrowing=narrowing)
        self._clock.lap("prefill")
        if logits is None:
            raise TypeError("fill was asked for logits")
        return logits


def _split(plan: Plan, repair: Repair, live: LiveCache, layers: int) -> ReuseSplit:
    computed = live.layers_computed[: len(plan.ids)] >= layers
    repaired = int(computed[repair.positions].sum())
    return ReuseSplit(
        exact=plan.exact_tokens,
        moved=plan.moved_tokens - repaired,
        repaired=repaired,
        computed=plan.computed_tokens,
    )
