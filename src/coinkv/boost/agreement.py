"""Agreement: how far answers made with reuse are from those of full prefill."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
import torch

from coinkv.boost.result import BoostResult


@dataclass(frozen=True, eq=False)
class Answered:
    """A prompt's greedy answer.

    Attributes:
        result: the answer, and how it came about.
        logits: `[vocabulary]` float32 on the CPU, of its first token.
    """

    result: BoostResult
    logits: torch.Tensor


@dataclass(frozen=True)
class Agreement:
    """How some answers compare with those of full prefill; all None where there are none.

    Attributes:
        prompts: how many were compared.
        top1: share of them whose likeliest first token is the same.
        largest_gap: largest difference of any first-token logit.
        mean_kl: mean KL(full || reuse) of the first token's distribution, in nats.
        largest_kl: the largest of them.
        same_answers: share of them whose answer is the same, token by token.
        mean_common_tokens: mean tokens until two answers part, or end.
    """

    prompts: int = 0
    top1: float | None = None
    largest_gap: float | None = None
    mean_kl: float | None = None
    largest_kl: float | None = None
    same_answers: float | None = None
    mean_common_tokens: float | None = None

    @classmethod
    def of(cls, pairs: Sequence[tuple[Answered, Answered]]) -> Agreement:
        """Compare pairs of answers, that of full prefill first."""
        if not pairs:
            return cls()
        logits = [(full.logits, reused.logits) for full, reused in pairs]
        divergences = [_divergence(*pair) for pair in logits]
        answers = [(full.result.token_ids, reused.result.token_ids) for full, reused in pairs]
        return cls(
            prompts=len(pairs),
            top1=fmean(bool(full.argmax() == reused.argmax()) for full, reused in logits),
            largest_gap=max(float((full - reused).abs().max()) for full, reused in logits),
            mean_kl=fmean(divergences),
            largest_kl=max(divergences),
            same_answers=fmean(full == reused for full, reused in answers),
            mean_common_tokens=fmean(_common(*pair) for pair in answers),
        )


def _divergence(full: torch.Tensor, reused: torch.Tensor) -> float:
    """KL(full || reused) in nats, from logits; rounding never makes it negative."""
    expected, got = full.double().log_softmax(-1), reused.double().log_softmax(-1)
    return max(0.0, float((expected.exp() * (expected - got)).sum()))


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens two answers begin with alike."""
    count = min(len(first), len(second))
    differ = np.flatnonzero(np.array(first[:count]) != np.array(second[:count]))
    return int(differ[0]) if len(differ) else count
