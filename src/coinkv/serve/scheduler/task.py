"""A task: what a request wants computed, in the two steps that the scheduler runs of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from coinkv.model.backbone import Backbone
from coinkv.model.decode import Sampling
from coinkv.model.decode_batch import Decoded
from coinkv.model.fill import LiveCache


@dataclass(frozen=True, eq=False)
class Begun:
    """A prompt whose KV is complete.

    Attributes:
        cache: KV of the whole prompt, with room for an answer.
        logits: `[1, vocabulary]` float32 behind it.
        prompt_tokens: tokens of the prompt.
        cached_tokens: of these, tokens whose KV was reused.
        ttft_seconds: spent on the prompt, waiting for turns included.
        stages_seconds: the same by stage.
        facts: JSON-ready, for the client: how the prompt's KV came to be.
        carried: whatever `end` needs.
    """

    cache: LiveCache
    logits: torch.Tensor
    prompt_tokens: int
    cached_tokens: int
    ttft_seconds: float
    stages_seconds: Mapping[str, float]
    facts: Mapping[str, Any] = field(default_factory=dict)
    carried: Any = None


class Task(ABC):
    """A prompt, and what becomes of its answers. `begin` and `end` run in worker threads."""

    backbone: Backbone
    """The model that answers; tasks of one backbone are decoded together."""
    kind: str
    """`boost` or `question`; a label of metrics."""

    def adapted(self, sampling: Sampling) -> Sampling:
        """How tokens are chosen, as it suits this task; by default as the request says."""
        return sampling

    @abstractmethod
    def begin(self) -> Begun:
        """Take the prompt as far as its first token's logits.

        Raises:
            CoinKVError: it cannot be answered.
        """

    @abstractmethod
    def end(self, begun: Begun, answers: Sequence[Decoded], decode_seconds: float) -> Any:
        """Keep what is worth keeping, and say what a client gets to know.

        Also called when a client has left in the middle of an answer.

        Args:
            begun: what `begin` gave; its cache holds the KV of the first answer's tokens, too,
                but for the last one.
            answers: as far as they came, in the order of the choices.
            decode_seconds: from the first token's logits to the end.
        """
