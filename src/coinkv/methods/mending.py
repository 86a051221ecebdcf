"""Mending: contexts of which some tokens are computed again, in one pass with the question."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from coinkv.errors import InputError
from coinkv.methods.base import Context, Live, Workbench
from coinkv.model.narrow import Narrowing
from coinkv.repair.deviation import Criterion, DeviationRepair, require_repair
from coinkv.retrieval.two_stage import Retrieval


def recomputing(
    context: Context,
    bench: Workbench,
    evidence: Retrieval,
    chosen: torch.Tensor,
    narrowing: Narrowing | None = None,
) -> Context:
    """The context with some of its evidence live.

    Args:
        context: all its KV reused, at consecutive positions, the prefix in front.
        bench: where the tokens come from.
        evidence: what was retrieved.
        chosen: sorted int64 indices into the tokens behind the prefix.
        narrowing: leaves some of them out of later layers.
    """
    if not len(chosen):
        return context
    token_ids = bench.token_ids(context.pieces[1:], evidence)
    live = Live(
        tuple(token_ids[index] for index in chosen.tolist()),
        chosen + len(context.pieces[0]),
        narrowing=narrowing,
    )
    return replace(context, live=live)


@dataclass(frozen=True)
class Blending:
    """Options of deviation-guided repair, for the methods that have it.

    Args:
        ratio: share of the evidence's tokens that is recomputed in all layers (`r`).
        criterion: what deviation is, see `coinkv.repair.deviation.DeviationRepair`.
        check_layer: all evidence is recomputed up to this layer, whose KV is compared.
        gradual: filter again in each later layer, as CacheBlend's paper has it.
    """

    ratio: float = 0.15
    criterion: Criterion = "values"
    check_layer: int = 1
    gradual: bool = False

    def __post_init__(self) -> None:
        require_repair(self.ratio, self.criterion, self.check_layer)

    def blended(self, context: Context, bench: Workbench, evidence: Retrieval) -> Context:
        """The context with this repair.

        Raises:
            InputError: the model has no such check layer.
        """
        layers = bench.backbone.shape.layers
        if self.check_layer >= layers:
            raise InputError(
                f"check_layer is {self.check_layer}, the model has {layers} layers",
                hint=f"use 0 to {layers - 1}",
            )
        nothing = torch.arange(0)
        offsets = torch.cat([nothing, *(torch.arange(len(p)) for p in context.pieces[1:])])
        repair = None
        if self.ratio < 1:
            repair = DeviationRepair(
                offsets, self.ratio, self.criterion, self.check_layer, self.gradual
            )
        chosen = torch.arange(len(offsets) if self.ratio > 0 else 0)
        return recomputing(context, bench, evidence, chosen, repair)
