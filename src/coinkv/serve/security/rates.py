"""How much a client may use a minute: token buckets of requests and of tokens."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from starlette.types import ASGIApp, Receive, Scope, Send

from coinkv.serve.security.refusal import Refusal
from coinkv.serve.settings import ServeSettings

MOST_CLIENTS = 10_000
"""Clients whose use is remembered at a time, about 200 bytes each."""

_READING = ("GET", "HEAD", "OPTIONS")


@dataclass(slots=True)
class _Bucket:
    level: float
    at: float


class Buckets:
    """Token buckets by client: each holds a minute's worth, and fills up within a minute.

    What is taken may exceed what is there: then the bucket owes, and is waited for the longer. A
    client who has not been seen for longest is forgotten when there are too many: its bucket is
    likely full again, as a new one is.
    """

    def __init__(
        self, *, most: int = MOST_CLIENTS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most = most
        self._clock = clock
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def __len__(self) -> int:
        """Clients remembered."""
        return len(self._buckets)

    def wait_seconds(self, client: str, per_minute: int) -> float:
        """How long until a client's bucket holds 1; 0 when it does."""
        missing = 1 - self._filled(client, per_minute).level
        return max(0.0, missing * 60 / per_minute)

    def take(self, client: str, per_minute: int, amount: float) -> None:
        """Take an amount out of a client's bucket, whether it is there or not."""
        self._filled(client, per_minute).level -= amount

    def _filled(self, client: str, per_minute: int) -> _Bucket:
        now = self._clock()
        bucket = self._buckets.get(client)
        if bucket is None:
            bucket = self._buckets[client] = _Bucket(float(per_minute), now)
            if len(self._buckets) > self._most:
                self._buckets.popitem(last=False)
        bucket.level = min(float(per_minute), bucket.level + (now - bucket.at) * per_minute / 60)
        bucket.at = now
        self._buckets.move_to_end(client)
        return bucket


class RateMiddleware:
    """Refuses a client that has used up its minute (429), and lets routes charge tokens.

    A request that only reads costs nothing. `request.state.charge(tokens)` is for a route to call
    when an answer has ended: how many tokens it takes is not known before, so a limit of tokens is
    felt by the next request.
    """

    def __init__(self, app: ASGIApp, settings: ServeSettings) -> None:
        self.app = app
        self._requests_per_minute = settings.requests_per_minute
        self._requests = Buckets()
        self._tokens = Buckets()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        state = scope["state"]
        client, key = state["client"], state["api_key"]
        requests = (key and key.requests_per_minute) or self._requests_per_minute
        tokens = key and key.tokens_per_minute

        def charge(amount: int) -> None:
            if tokens:
                self._tokens.take(client, tokens, amount)

        state["charge"] = charge
        refusal = None
        if scope["path"].startswith("/v1/") and scope["method"] not in _READING:
            refusal = self._judged(client, requests, tokens)
        await (refusal or self.app)(scope, receive, send)

    def _judged(self, client: str, requests: int | None, tokens: int | None) -> Refusal | None:
        """Count a request, or say how long it has to wait."""
        if tokens and (seconds := self._tokens.wait_seconds(client, tokens)):
            return _too_many(f"{tokens} tokens", seconds)
        if requests:
            if seconds := self._requests.wait_seconds(client, requests):
                return _too_many(f"{requests} requests", seconds)
            self._requests.take(client, requests, 1)
        return None


def _too_many(limit: str, seconds: float) -> Refusal:
    wait = max(1, math.ceil(seconds))
    return Refusal(
        429,
        f"The limit of {limit} a minute is used up; try again in {wait} s.",
        "rate_limit_exceeded",
        "rate_limit_error",
        {"retry-after": str(wait)},
    )
