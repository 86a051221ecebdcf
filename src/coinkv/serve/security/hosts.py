"""Which names the server answers under, and which web pages may make it do something."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from coinkv.serve.security.access import is_loopback
from coinkv.serve.security.refusal import Refusal
from coinkv.serve.settings import ServeSettings

ANY = "*"
"""In `allowed_hosts` or `cors_origins`: every one."""

_READING = ("GET", "HEAD")
_DEFAULT_PORTS = {"http": 80, "https": 443}


class HostMiddleware:
    """Refuses requests that were meant for another host (421).

    A web page can have its own name resolve to this machine and then read our replies as its own
    (DNS rebinding): the Host field still holds its name. So a loopback server answers to loopback
    names and what `allowed_hosts` adds. One that listens for others answers to any IP address, too:
    nobody can have an address resolve to another one.
    """

    def __init__(self, app: ASGIApp, settings: ServeSettings) -> None:
        self.app = app
        self._names = {name.lower().rstrip(".") for name in settings.allowed_hosts}
        self._names |= {settings.host.lower().strip("[]"), "localhost"}
        self._beyond_loopback = not is_loopback(settings.host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        refused = scope["type"] == "http" and not self._is_ours(_authority(scope))
        await (_WRONG_HOST if refused else self.app)(scope, receive, send)

    def _is_ours(self, authority: str) -> bool:
        host = _host_of(authority)
        if ANY in self._names or host in self._names:
            return host != ""
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        return address.is_loopback or self._beyond_loopback


class OriginMiddleware:
    """Refuses what a web page from elsewhere sends to change something or to compute (403).

    A browser sends a foreign page's form or simple POST without asking us; that the page cannot
    read the reply undoes nothing. Browsers name the page's origin with every such request, programs
    name none. Reading is not refused: without CORS fields browsers keep the reply from the page.
    """

    def __init__(self, app: ASGIApp, settings: ServeSettings) -> None:
        self.app = app
        self._origins = {origin.lower().rstrip("/") for origin in settings.cors_origins}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        refused = scope["type"] == "http" and self._is_foreign(scope)
        await (_FOREIGN_PAGE if refused else self.app)(scope, receive, send)

    def _is_foreign(self, scope: Scope) -> bool:
        if scope["method"] in _READING or ANY in self._origins:
            return False
        origins = [value for name, value in scope["headers"] if name == b"origin"]
        return not all(self._is_known(value.decode("latin-1"), scope) for value in origins)

    def _is_known(self, origin: str, scope: Scope) -> bool:
        if origin.lower() in self._origins:
            return True
        scheme, _, authority = origin.lower().partition("://")
        default = f":{_DEFAULT_PORTS.get(scheme)}"
        ours = _authority(scope).removesuffix(default)
        # the scheme is not compared: behind a proxy the page has https and we have http
        return ours != "" and authority.removesuffix(default) == ours


_WRONG_HOST = Refusal(
    421,
    "The server does not answer under this host name; allow it with allowed_hosts "
    "(COINKV_SERVE_ALLOWED_HOSTS).",
    "wrong_host",
)
_FOREIGN_PAGE = Refusal(
    403,
    "A web page from another origin may not do this; allow it with cors_origins "
    "(COINKV_SERVE_CORS_ORIGINS).",
    "foreign_origin",
    "permission_error",
)


def _authority(scope: Scope) -> str:
    """The one Host field; nothing where there is none, or more than one."""
    values = [value for name, value in scope["headers"] if name == b"host"]
    return values[0].decode("latin-1").strip().lower() if len(values) == 1 else ""


def _host_of(authority: str) -> str:
    """The name or address in a Host field, without port and brackets; nothing if it is none."""
    try:
        parts = urlsplit(f"//{authority}")
        whole = parts.netloc == authority and "@" not in authority and parts.port != 0
        return (whole and parts.hostname) or ""
    except ValueError:  # a port that is no number, brackets that do not close
        return ""
