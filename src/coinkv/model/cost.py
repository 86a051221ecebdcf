"""What a forward pass costs on this machine: measured once, then predicted."""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median

import torch

from coinkv.model.backbone import Backbone
from coinkv.model.fill import LiveCache, fill
from coinkv.model.work import Work

_PASSES = ((8, 0), (128, 0), (8, 1024), (128, 1024))
"""Tokens computed and tokens cached in the passes that are timed."""
_REPEATS = 3


@dataclass(frozen=True)
class CostModel:
    """Seconds of a pass: a share that every pass has, one for each token and layer, one a pair.

    Attributes:
        per_pass: seconds of any pass.
        per_layer_token: seconds of one token in one layer.
        per_pair: seconds of one query-key pair in one layer.
    """

    per_pass: float
    per_layer_token: float
    per_pair: float

    def seconds(self, work: Work) -> float:
        """How long a pass with this work is expected to take."""
        return (
            self.per_pass + self.per_layer_token * work.layer_tokens + self.per_pair * work.attended
        )


def calibrated(backbone: Backbone) -> CostModel:
    """Time a few small passes of a model; about a second for the default one on two cores."""
    layers = backbone.shape.layers
    room = backbone.context_length
    passes = [(live, min(held, room - live)) for live, held in _PASSES if live <= room]
    facts, seconds = [], []
    for live, held in passes:
        facts.append([1.0, layers * live, layers * live * (live + held)])
        seconds.append(_seconds(backbone, live, held))
    solved = torch.linalg.lstsq(
        torch.tensor(facts, dtype=torch.float64),
        torch.tensor(seconds, dtype=torch.float64)[:, None],
        driver="gelsd",
    ).solution[:, 0]
    return CostModel(*solved.clamp(min=0).tolist())


def _seconds(backbone: Backbone, live: int, held: int) -> float:
    cache = LiveCache.for_backbone(backbone, held + live)
    cache.keys.zero_()
    cache.values.zero_()
    cache.reserve(torch.arange(held))
    times = []
    for _ in range(1 + _REPEATS):  # the first one warms up
        started = time.perf_counter()
        fill(backbone, cache, [0] * live, torch.arange(held, held + live))
        backbone.synchronize()
        times.append(time.perf_counter() - started)
        cache.truncate(held)
    return median(times[1:])
