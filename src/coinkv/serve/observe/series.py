"""The figures there are: their names, what they mean, their labels and bounds."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram

_MILLISECONDS = (1, 2.5, 5, 10, 25, 50, 100, 150, 200, 300, 500, 750)
SECONDS = (*(bound / 1000 for bound in _MILLISECONDS), 1, 1.5, 2.5, 5, 10, 20, 30, 60)
"""Bounds of times: a GPU's stage takes milliseconds, a CPU's prefill up to a minute."""
TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
"""Bounds of the tokens of one pass."""


class PromptSeries:
    """Of prompts and their answers.

    Args:
        to: the registry.
    """

    def __init__(self, to: CollectorRegistry) -> None:
        self.submitted = _counter(
            to, "coinkv_submitted", "Requests that the scheduler took on", "kind"
        )
        self.ttft = _seconds(
            to,
            "coinkv_ttft_seconds",
            "From a request's submission to its first token's logits, the queue included",
            *("kind", "method"),
        )
        self.stage = _seconds(
            to,
            "coinkv_stage_seconds",
            "The time to the first token by stage: queue, embed, retrieve, read, prefill, others",
            *("stage", "kind", "method"),
        )
        self.tasks = _counter(
            to,
            "coinkv_tasks",
            "Requests that left the scheduler: done, cancelled, deadline, error or shutdown",
            *("kind", "outcome"),
        )
        self.task_seconds = _seconds(
            to,
            "coinkv_task_seconds",
            "From a request's submission to the end of its answers",
            "kind",
        )
        self.prompt_tokens = _counter(to, "coinkv_prompt_tokens", "Tokens of prompts", "kind")
        self.cached_tokens = _counter(
            to, "coinkv_cached_tokens", "Tokens of prompts whose KV was reused", "kind"
        )
        self.answer_tokens = _counter(to, "coinkv_answer_tokens", "Tokens of answers", "kind")
        self.kv_tokens = _counter(
            to,
            "coinkv_kv_tokens",
            "Tokens of prompts by where their KV came from: exact, moved, repaired or computed; "
            "for questions, composed from an index or computed",
            *("kind", "source"),
        )
        self.missing = _counter(
            to,
            "coinkv_blocks_missing",
            "KV blocks of indexes that the store did not hold and that were recomputed",
        )
        self.damaged = _counter(
            to,
            "coinkv_blocks_damaged",
            "KV blocks of indexes that failed their checksum and were recomputed",
        )


class PassSeries:
    """Of single passes of the model.

    Args:
        to: the registry.
    """

    def __init__(self, to: CollectorRegistry) -> None:
        self.seconds = _seconds(
            to,
            "coinkv_step_seconds",
            "One pass of the model: a chunk of a prompt (prefill), or a token of every stream "
            "(decode)",
            "step",
        )
        self.tokens = _histogram(
            to,
            "coinkv_step_tokens",
            "Tokens computed in one pass; of a decoding step, its batch size",
            ("step",),
            TOKENS,
        )


class HttpSeries:
    """Of HTTP requests.

    Args:
        to: the registry.
    """

    def __init__(self, to: CollectorRegistry) -> None:
        self.requests = _counter(
            to,
            "coinkv_http_requests",
            "HTTP requests by status; 499 where the client left before there was one",
            *("method", "route", "status"),
        )
        self.seconds = _seconds(
            to,
            "coinkv_http_request_seconds",
            "From a request's arrival to the end of its response",
            "route",
        )
        self.errors = _counter(
            to,
            "coinkv_errors",
            "Requests that failed, by the error's type, and whether its stream had begun",
            *("type", "in_stream"),
        )


def _counter(to: CollectorRegistry, name: str, meaning: str, *labels: str) -> Counter:
    return Counter(name, meaning, labels, registry=to)


def _seconds(to: CollectorRegistry, name: str, meaning: str, *labels: str) -> Histogram:
    return _histogram(to, name, meaning, labels, SECONDS)


def _histogram(
    to: CollectorRegistry, name: str, meaning: str, labels: Sequence[str], bounds: Sequence[float]
) -> Histogram:
    return Histogram(name, meaning, labels, buckets=bounds, registry=to)
