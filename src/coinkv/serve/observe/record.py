"""What is known of one HTTP request: filled while it runs, read when it has ended."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from coinkv.errors import CoinKVError
from coinkv.serve.scheduler.events import Began, Done, Event, Failed, Token

CURRENT: ContextVar[RequestRecord | None] = ContextVar("request_record", default=None)
"""The record of the request in whose context the code runs."""


@dataclass(frozen=True)
class Prompted:
    """A prompt whose KV is complete, without the KV and without any text.

    Attributes:
        ended_at: when, on the clock of `time.perf_counter`.
        queue_seconds: it waited for a slot.
        stages_seconds: where the time went after that.
        prompt_tokens: tokens of the prompt.
        cached_tokens: of these, tokens whose KV was reused.
        method: how the context of a question was made; None for other prompts.
        reuse: tokens by where their KV came from; empty for questions.
    """

    ended_at: float
    queue_seconds: float
    stages_seconds: Mapping[str, float]
    prompt_tokens: int
    cached_tokens: int
    method: str | None
    reuse: Mapping[str, int]

    @classmethod
    def of(cls, began: Began) -> Prompted:
        """What may be kept of an event."""
        begun = began.begun
        method = begun.facts.get("method")
        return cls(
            ended_at=time.perf_counter(),
            queue_seconds=began.queue_seconds,
            stages_seconds=dict(begun.stages_seconds),
            prompt_tokens=begun.prompt_tokens,
            cached_tokens=begun.cached_tokens,
            method=None if method is None else str(method),
            reuse=dict(begun.facts.get("reuse") or {}),
        )


@dataclass(frozen=True)
class Decoded:
    """Answers that have come to their end: when, and how long after the first token's logits."""

    ended_at: float
    decode_seconds: float


@dataclass(eq=False)
class RequestRecord:
    """One request. Holds no prompt, no answer, no key and no path that a client made up.

    Attributes:
        request_id: the client's, where it was a sane one, or a fresh one.
        method: GET, POST, ...; `other` for what HTTP does not know.
        quiet: asked by probes every few seconds; not worth a log line or a trace.
        started_at: when, on the clock of `time.perf_counter`.
        started_ns: the same moment in nanoseconds since 1970.
        state: the request's state, where others put `client` and `namespace`.
        route: the route's template, such as `/v1/models/{id}`; `other` where there is none.
        status: of the response; 499 where the client left before there was one.
        complete: the response was sent to its end.
        ended_at: when it was over.
        prompts: the prompts that were begun.
        answers: the answers that came to an end.
        answer_tokens: tokens chosen in all answers.
        error: what a task failed of.
        trace_id: 32 hex digits where the request is traced.
    """

    request_id: str
    method: str
    quiet: bool
    state: Mapping[str, Any]
    started_at: float = field(default_factory=time.perf_counter)
    started_ns: int = field(default_factory=time.time_ns)
    route: str = "other"
    status: int = 499
    complete: bool = False
    ended_at: float = 0.0
    prompts: list[Prompted] = field(default_factory=list)
    answers: list[Decoded] = field(default_factory=list)
    answer_tokens: int = 0
    error: CoinKVError | None = None
    trace_id: str | None = None

    def heard(self, event: Event) -> None:
        """Note what a task of this request says."""
        match event:
            case Token(token_id=token_id):
                self.answer_tokens += token_id is not None
            case Began():
                self.prompts.append(Prompted.of(event))
            case Done(decode_seconds=seconds) if self.prompts:  # else nothing was decoded
                self.answers.append(Decoded(time.perf_counter(), seconds))
            case Failed(error=error):
                self.error = error

    @property
    def seconds(self) -> float:
        """From the request's arrival to the end of its response."""
        return self.ended_at - self.started_at

    @property
    def ttft_seconds(self) -> float | None:
        """From the request's arrival to the first token's logits, everything included."""
        return self.prompts[0].ended_at - self.started_at if self.prompts else None

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts."""
        return sum(prompt.prompt_tokens for prompt in self.prompts)

    @property
    def cached_tokens(self) -> int:
        """Of these, tokens whose KV was reused."""
        return sum(prompt.cached_tokens for prompt in self.prompts)
