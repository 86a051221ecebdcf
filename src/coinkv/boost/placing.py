"""Placing: a plan's KV put where it belongs, the rest computed in one pass."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from coinkv.boost.cache import ReuseCache
from coinkv.boost.plan import Part, Plan
from coinkv.boost.result import ReuseSplit
from coinkv.kv.block import KVBlock
from coinkv.methods.clock import StageClock
from coinkv.model.backbone import Backbone
from coinkv.model.fill import LiveCache, fill
from coinkv.repair.base import Repair, ranges


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
    """Put reused KV into place and compute holes, repaired tokens and the last token in one pass.

    Args:
        backbone: the model.
        plan: of the prompt.
        blocks: KV of its parts.
        repair: which moved tokens to compute again.
        room: tokens to leave free for an answer.
        clock: takes the laps `compose` and `prefill`.
    """
    live = LiveCache.for_backbone(backbone, len(plan.ids) + room)
    for part, parts_blocks in zip(plan.parts, blocks, strict=True):
        _reserve_to(live, part.start)
        _place(live, part, parts_blocks, backbone)
    _reserve_to(live, len(plan.ids))
    clock.lap("compose")
    # narrowing takes the rows that may be left out first
    positions = torch.cat([repair.positions, ranges(plan.holes)])
    if repair.narrowing is None:
        positions = positions.sort().values
    logits = fill(
        backbone,
        live,
        plan.ids[positions.numpy()].tolist(),
        positions,
        narrowing=repair.narrowing,
    )
    clock.lap("prefill")
    if logits is None:
        raise TypeError("fill was asked for logits")
    return Placed(live, logits, _split(plan, repair, live, backbone.shape.layers))


def _reserve_to(live: LiveCache, end: int) -> None:
    live.reserve(torch.arange(live.length, end))


def _place(live: LiveCache, part: Part, blocks: list[KVBlock], backbone: Backbone) -> None:
    start = live.length
    for block in blocks:
        live.append(block)
    if part.moved:
        live.move(start, torch.arange(start, live.length), backbone.rope)


def _split(plan: Plan, repair: Repair, live: LiveCache, layers: int) -> ReuseSplit:
    computed = live.layers_computed[: len(plan.ids)] >= layers
    repaired = int(computed[repair.positions].sum())
    return ReuseSplit(
        exact=plan.exact_tokens,
        moved=plan.moved_tokens - repaired,
        repaired=repaired,
        computed=plan.computed_tokens,
    )
