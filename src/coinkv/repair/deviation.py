"""Deviation-guided repair: a probe in the early layers finds the tokens whose KV deviates most."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

import torch

from coinkv.errors import InputError

Criterion = Literal["values", "keys", "key_cosine", "first", "random"]
CRITERIA: tuple[Criterion, ...] = get_args(Criterion)
_EXCESS = 0.5
"""Gradual filtering begins with half as many tokens more; the surplus halves a layer."""


def require_repair(ratio: float, criterion: str, check_layer: int) -> None:
    """Refuse options of a repair that make no sense.

    Raises:
        InputError: the ratio lies outside 0 to 1, or criterion or layer do not exist.
    """
    if not 0 <= ratio <= 1:
        raise InputError(f"ratio is {ratio}", hint="use 0 (no repair) to 1 (everything)")
    if criterion not in CRITERIA:
        raise InputError(
            f"no criterion is called {criterion!r}", hint=f"use one of {', '.join(CRITERIA)}"
        )
    if check_layer < 0:
        raise InputError(f"check_layer is {check_layer}", hint="count layers from 0")


def picked(tokens: int, ratio: float) -> int:
    """How many of so many tokens a ratio stands for, rounded half up."""
    return int(tokens * ratio + 0.5)


@dataclass
class DeviationRepair:
    """Computes all evidence up to a check layer, then goes on with the tokens that deviate most.

    CacheBlend (arXiv 2405.16444). The first rows of the pass are the evidence; what follows (the
    question) is computed in all layers. The public versions differ in the criterion, so it is an
    option: `values` sums squared differences of the values (CacheBlend's released code), `keys` of
    the keys (LMCache), `key_cosine` takes the mean cosine distance of the keys (KVBoost); `first`
    (the tokens nearest to the beginning of their piece, as EPIC would) and `random` are controls
    that ignore what the probe found. In the layers up to the check layer the fresh KV of all
    evidence is kept: it has been computed.

    Attributes:
        offsets: int64 `[evidence]`: how far each evidence token is from the beginning of its piece.
        ratio: the share of them that is computed in all layers.
        criterion: what deviation is.
        check_layer: the layer whose KV is compared, from 0.
        gradual: filter again in every layer after the check layer, down to the ratio (the paper's
            gradual filtering; the released code picks once).
        seed: of the random criterion.
        threshold: of the share, only tokens that deviate by more than this go on; None: all of
            them. Relative for `values` and `keys` (length of the difference over that of what was
            computed), a cosine distance for `key_cosine`.
    """

    offsets: torch.Tensor
    ratio: float
    criterion: Criterion = "values"
    check_layer: int = 1
    gradual: bool = False
    seed: int = 0
    threshold: float | None = None
    _left: int = field(init=False)
    _fixed: torch.Tensor | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._left = len(self.offsets)
        if self.criterion == "first":
            self._fixed = -self.offsets.float()
        elif self.criterion == "random":
            generator = torch.Generator().manual_seed(self.seed)
            self._fixed = torch.rand(self._left, generator=generator)

    def keep(
        self,
        layer: int,
        fresh: tuple[torch.Tensor, torch.Tensor],
        cached: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor | None:
        """The evidence rows that go on, and all rows behind the evidence."""
        if layer < self.check_layer or (layer > self.check_layer and not self.gradual):
            return None
        wanted = min(self._left, picked(len(self.offsets), self._share(layer)))
        if wanted == self._left and self.threshold is None:
            return None
        score = self._deviation(fresh, cached) if self._fixed is None else self._fixed
        best = score.topk(wanted).indices.sort().values
        if self.threshold is not None and self._fixed is None:
            best = best[self._relative(score[best], fresh, best) > self.threshold]
        best = best.cpu()
        behind = torch.arange(self._left, fresh[0].shape[1])
        self._left = len(best)
        self._fixed = None if self._fixed is None else self._fixed[best]
        return torch.cat([best, behind])

    def _share(self, layer: int) -> float:
        surplus = _EXCESS * 0.5 ** (layer - self.check_layer) if self.gradual else 0.0
        return min(1.0, self.ratio * (1 + surplus))

    def _deviation(
        self,
        fresh: tuple[torch.Tensor, torch.Tensor],
        cached: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        """`[evidence rows left]` float32."""
        which = 1 if self.criterion == "values" else 0
        new, old = fresh[which][:, : self._left].float(), cached[which][:, : self._left].float()
        if self.criterion == "key_cosine":
            return 1 - torch.nn.functional.cosine_similarity(new, old, dim=-1).mean(0)
        return (new - old).square().sum(dim=(0, 2))

    def _relative(
        self, score: torch.Tensor, fresh: tuple[torch.Tensor, torch.Tensor], rows: torch.Tensor
    ) -> torch.Tensor:
        """Scores of some rows as the threshold measures them."""
        if self.criterion == "key_cosine":
            return score
        new = fresh[1 if self.criterion == "values" else 0][:, rows].float()
        return (
            score / new.square().sum(dim=(0, 2)).clamp(min=torch.finfo(torch.float32).tiny)
        ).sqrt()
