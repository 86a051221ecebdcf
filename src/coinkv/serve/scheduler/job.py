"""A job: a request in the scheduler, from its arrival to its last token."""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from coinkv.model.backbone import Backbone
from coinkv.model.decode import Choice, Sampling
from coinkv.model.decode_batch import Decoded
from coinkv.model.turns import Caller, NotWantedError
from coinkv.serve.scheduler.events import ChosenLogprob, Event, Token, TokenLogprob
from coinkv.serve.scheduler.observer import Outcome
from coinkv.serve.scheduler.task import Begun, Task
from coinkv.serve.scheduler.ticket import Ticket


@dataclass(frozen=True)
class Errand:
    """Work without an answer to decode, such as embedding texts."""

    work: Callable[[], Any]
    kind: str


class Job(Caller):
    """A request in the scheduler; the caller of its own forward passes.

    Attributes:
        client: whose it is.
        order: what is to be computed.
        ticket: hears of it.
        submitted: when it came, by `time.perf_counter`.
        outcome: how it left; None while it is wanted.
        begun: its prompt, once computed.
        context: in which its client submitted it, so that log lines tell whose they are.
        going: its choices, by number, that are not at their end.
        decode_began: when its first token was chosen.
    """

    def __init__(
        self,
        client: str,
        order: Task | Errand,
        ticket: Ticket,
        samplings: Sequence[Sampling] = (),
        logprobs: int | None = None,
    ) -> None:
        self.client, self.order, self.ticket = client, order, ticket
        self.submitted = time.perf_counter()
        self.context = contextvars.copy_context()
        self.outcome: Outcome | None = None
        self.begun: Begun | None = None
        self.going: dict[int, Choice] = {}
        self.decode_began = 0.0
        self._leaving = threading.Lock()
        self._samplings, self._logprobs = samplings, logprobs
        self._choices: list[Choice] = []

    @property
    def backbone(self) -> Backbone:
        """The model that answers."""
        if isinstance(self.order, Errand):
            raise TypeError("an errand is not decoded")
        return self.order.backbone

    @property
    def wanted(self) -> bool:
        """It has not left: its client waits for more."""
        return self.outcome is None

    def require_wanted(self) -> None:
        """Go on.

        Raises:
            NotWantedError: it has left.
        """
        if self.outcome is not None:
            raise NotWantedError(self.outcome)

    def leave(self, outcome: Outcome, event: Event | None = None) -> bool:
        """Leave, with a last word to the client; only the first outcome counts.

        Returns:
            Whether this was the first.
        """
        with self._leaving:
            if self.outcome is not None:
                return False
            self.outcome = outcome
        if event is not None:
            self.ticket.tell(event)
        return True

    def tell(self, event: Event) -> None:
        """Let the client know, if it still wants to."""
        if self.wanted:
            self.ticket.tell(event)

    @property
    def tokens(self) -> int:
        """Slots of KV that it takes, the answers' room included."""
        begun = self.begun
        return 0 if begun is None else begun.cache.capacity * max(1, len(self._choices))

    def open_choices(self, task: Task, begun: Begun) -> None:
        """Choose the first token of every choice."""
        self.begun, self.decode_began = begun, time.perf_counter()
        self._choices = [
            Choice(task.backbone, begun.cache, task.adapted(sampling))
            for sampling in self._samplings
        ]
        self.going = dict(enumerate(self._choices))
        for number in list(self.going):
            self.take(number, begun.logits[-1])

    def take(self, number: int, logits: torch.Tensor) -> bool:
        """Choose a choice's next token by its logits `[vocabulary]`; whether it goes on."""
        choice = self._choices[number]
        goes_on = choice.take(logits)
        token = choice.token if goes_on else choice.last_token
        logprob = None
        if self._logprobs is not None and token is not None:
            logprob = _logprob(logits, token, self._logprobs)
        reason = None if goes_on else choice.finish_reason
        self.tell(Token(number, choice.added, token, logprob, reason))
        if not goes_on:
            del self.going[number]
        return goes_on

    def forget(self) -> None:
        """Let the KV go at once, not when the collector comes by: it may be hundreds of MB."""
        self.begun = None
        self.going.clear()
        self._choices.clear()

    def answers(self) -> list[Decoded]:
        """The answers as far as they came."""
        return [
            Decoded(each.text, tuple(each.token_ids), each.finish_reason) for each in self._choices
        ]


def _logprob(logits: torch.Tensor, token: int, count: int) -> ChosenLogprob:
    logs = logits.float().log_softmax(-1)
    best = logs.topk(min(count, len(logs)))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return ChosenLogprob(
        TokenLogprob(token, float(logs[token])), tuple(TokenLogprob(*pair) for pair in pairs)
    )
