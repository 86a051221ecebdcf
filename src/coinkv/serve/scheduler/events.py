"""What happens to a request, in the order in which its client hears of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from coinkv.errors import CoinKVError
from coinkv.model.decode import FinishReason
from coinkv.serve.scheduler.task import Begun


@dataclass(frozen=True)
class TokenLogprob:
    """A token and the logarithm of its probability (before temperature and top_p)."""

    token_id: int
    logprob: float


@dataclass(frozen=True)
class ChosenLogprob:
    """The token that was chosen, and the likeliest ones in its place.

    Attributes:
        chosen: the token itself.
        top: the likeliest tokens, best first; as many as were asked for.
    """

    chosen: TokenLogprob
    top: tuple[TokenLogprob, ...]


@dataclass(frozen=True)
class Began:
    """The prompt's KV is complete, the first token about to be chosen.

    Attributes:
        queue_seconds: from submission to a free slot.
        begun: the prompt; its cache belongs to the scheduler.
    """

    queue_seconds: float
    begun: Begun


@dataclass(frozen=True)
class Token:
    """One step of one choice.

    Attributes:
        choice: number of the choice, from 0.
        text: what became certain with it, perhaps nothing.
        token_id: the token; None when an end token or a limit ended the answer.
        logprob: if it was asked for.
        finish_reason: why the answer ended, on its last token.
    """

    choice: int
    text: str
    token_id: int | None
    logprob: ChosenLogprob | None = None
    finish_reason: FinishReason | None = None


@dataclass(frozen=True)
class Done:
    """All choices have ended; `result` is what the task's `end` gave. The last event."""

    result: Any
    decode_seconds: float


@dataclass(frozen=True)
class Failed:
    """The request was given up: bad input, deadline, shutdown. The last event."""

    error: CoinKVError


Event = Began | Token | Done | Failed
