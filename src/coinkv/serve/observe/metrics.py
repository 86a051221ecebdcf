"""What is counted and measured while requests run; each app has a registry of its own."""

from __future__ import annotations

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from coinkv.errors import DeadlineError
from coinkv.methods.registry import method_names
from coinkv.serve.observe.record import CURRENT, RequestRecord
from coinkv.serve.observe.series import HttpSeries, PassSeries, PromptSeries
from coinkv.serve.scheduler.events import Event
from coinkv.serve.scheduler.observer import Observer, Outcome, StepKind
from coinkv.serve.scheduler.task import Begun

STAGES = frozenset(
    {"prepare", "embed", "retrieve", "tokenize", "plan", "read", "compose", "prefill"}
)
SOURCES = ("exact", "moved", "repaired", "computed")
"""Where the KV of a prompt's tokens came from (see `boost.result.ReuseSplit`)."""
BOOST = "kvboost"
"""Stands for the method where the prompt was no question to an index."""


class Metrics(Observer):
    """The figures of one app. Labels come from the server's own lists, never from clients."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self._methods = frozenset(method_names())
        self._prompts = PromptSeries(self.registry)
        self._passes = PassSeries(self.registry)
        self._http = HttpSeries(self.registry)

    def exposed(self, accept: str) -> tuple[bytes, str]:
        """All figures as text.

        Args:
            accept: the formats a scraper takes, as in the header of that name.

        Returns:
            The text in UTF-8, and its content type.
        """
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type

    def queued(self, kind: str) -> None:
        """See `Observer.queued`."""
        self._prompts.submitted.labels(kind).inc()

    def began(self, kind: str, begun: Begun, queue_seconds: float) -> None:
        """See `Observer.began`."""
        method = BOOST
        if kind == "question":
            named = begun.facts.get("method")
            method = named if named in self._methods else "other"
        self._prompts.ttft.labels(kind, method).observe(queue_seconds + begun.ttft_seconds)
        self._prompts.stage.labels("queue", kind, method).observe(queue_seconds)
        for stage, seconds in begun.stages_seconds.items():
            known = stage if stage in STAGES else "other"
            self._prompts.stage.labels(known, kind, method).observe(seconds)
        self._prompts.prompt_tokens.labels(kind).inc(begun.prompt_tokens)
        self._prompts.cached_tokens.labels(kind).inc(begun.cached_tokens)
        for source, tokens in _sources(begun).items():
            self._prompts.kv_tokens.labels(kind, source).inc(tokens)
        self._prompts.missing.inc(begun.facts.get("blocks_missing", 0))
        self._prompts.damaged.inc(begun.facts.get("blocks_damaged", 0))

    def token(self, kind: str, n: int) -> None:
        """See `Observer.token`."""
        self._prompts.answer_tokens.labels(kind).inc(n)

    def heard(self, event: Event) -> None:
        """See `Observer.heard`."""
        record = CURRENT.get()
        if record is not None:
            record.heard(event)

    def ended(self, kind: str, outcome: Outcome, seconds: float) -> None:
        """See `Observer.ended`."""
        self._prompts.tasks.labels(kind, outcome).inc()
        self._prompts.task_seconds.labels(kind).observe(seconds)

    def step(self, kind: StepKind, tokens: int, seconds: float) -> None:
        """See `Observer.step`."""
        self._passes.seconds.labels(kind).observe(seconds)
        self._passes.tokens.labels(kind).observe(tokens)

    def request(self, record: RequestRecord) -> None:
        """Count an HTTP request that is over."""
        self._http.requests.labels(record.method, record.route, str(record.status)).inc()
        self._http.seconds.labels(record.route).observe(record.seconds)
        if record.status >= 400:
            self._http.errors.labels(_error_type(record.status), "no").inc()
        elif record.error is not None:
            status = 504 if isinstance(record.error, DeadlineError) else 500
            self._http.errors.labels(_error_type(status), "yes").inc()


def _sources(begun: Begun) -> dict[str, int]:
    """Tokens of a prompt by where their KV came from."""
    reuse = begun.facts.get("reuse")
    if reuse is not None:
        return {source: reuse[source] for source in SOURCES}
    computed = begun.prompt_tokens - begun.cached_tokens
    return {"composed": begun.cached_tokens, "computed": computed}


def _error_type(status: int) -> str:
    """The type that the body of such a reply names, and `client_left` where there was none."""
    kinds = {401: "authentication_error", 403: "permission_error", 404: "not_found_error"}
    kinds |= {408: "timeout_error", 429: "rate_limit_error", 499: "client_left"}
    kinds |= {504: "timeout_error"}
    return kinds.get(status, "invalid_request_error" if status < 500 else "server_error")
