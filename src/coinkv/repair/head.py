"""Head repair: the first tokens of every piece that was encoded apart, chosen without a probe."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def heads(lengths: Sequence[int], tokens: int) -> torch.Tensor:
    """Indices of the first tokens of each piece, the pieces standing one behind the other.

    EPIC's static choice (arXiv 2410.15332): a piece that was encoded apart took its first tokens
    for the beginning of the text, and so do those who read it.

    Args:
        lengths: tokens of each piece.
        tokens: how many of each to choose.

    Returns:
        sorted int64 indices into the joined pieces.
    """
    chosen, start = [], 0
    for length in lengths:
        chosen.append(torch.arange(start, start + min(tokens, length)))
        start += length
    return torch.cat(chosen) if chosen else torch.arange(0)
