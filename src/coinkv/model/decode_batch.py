"""Batched decoding: several answers continue together, each behind its own context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from coinkv.errors import InputError
from coinkv.model.backbone import Backbone
from coinkv.model.decode import Choice, FinishReason, Sampling
from coinkv.model.fill import LiveCache
from coinkv.model.rows import Rows


@dataclass(frozen=True)
class Decoded:
    """One of the answers: its text, its tokens, and why it ended."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason

    @property
    def tokens(self) -> int:
        """How many tokens it took."""
        return len(self.token_ids)


def decode_batch(
    backbone: Backbone,
    caches: Sequence[LiveCache],
    logits: Sequence[torch.Tensor],
    sampling: Sampling,
) -> list[Decoded]:
    """Continue from filled caches together until each answer has ended.

    A step computes one token of every answer that goes on. The caches are not changed. Each answer
    is what `decode` gives, except where two tokens are equal in probability up to the rounding of
    float arithmetic.

    Args:
        backbone: the model.
        caches: hold everything before each answer.
        logits: `[1, vocabulary]` behind each.
        sampling: how to choose and when to end, for all.

    Raises:
        InputError: numbers of caches and logits differ.
    """
    if len(caches) != len(logits):
        raise InputError(f"{len(caches)} caches do not go with {len(logits)} rows of logits")
    choices = [Choice(backbone, cache, sampling) for cache in caches]
    going = [n for n, choice in enumerate(choices) if choice.take(logits[n][-1])]
    rows = Rows(backbone)
    for n in going:
        rows.add(caches[n])
    while going:
        logits_now = rows.step([choices[n].token for n in going])
        ended = [row for row, n in enumerate(going) if not choices[n].take(logits_now[row])]
        for row in reversed(ended):
            rows.remove(row)
            going[row] = going[-1]
            going.pop()
    return [
        Decoded(choice.text, tuple(choice.token_ids), choice.finish_reason) for choice in choices
    ]
