"""Who may ask: an API key where there are keys, anyone on this machine where there are none."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Any

from fastapi import Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.types import ASGIApp, Receive, Scope, Send

from coinkv.errors import InputError
from coinkv.serve.security.key_file import ApiKey
from coinkv.serve.security.keys import DEFAULT_NAMESPACE, Keys
from coinkv.serve.security.refusal import Refusal
from coinkv.serve.settings import ServeSettings

OPEN_PATHS = frozenset(
    {"/", "/favicon.ico", "/healthz", "/readyz", "/openapi.json"},
)
"""What needs no key; whatever is not here or below `/assets/` does."""

_BEARER = HTTPBearer(auto_error=False, description="A key made by `coinkv keys add`.")
_IPV6_NETWORK_BITS = 64


def namespace_of(
    request: Request,
    _in_openapi: Annotated[HTTPAuthorizationCredentials | None, Security(_BEARER)] = None,
) -> str:
    """What a request sees (a dependency of routes): its key's namespace, or `default`."""
    return str(getattr(request.state, "namespace", DEFAULT_NAMESPACE))


def client_of(request: Request) -> str:
    """Who asks (a dependency of routes): the key's name, or the peer's address without keys."""
    return str(getattr(request.state, "client", "local"))


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address to listen on; of names, `localhost` alone."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def require_safe_binding(settings: ServeSettings, keys: Keys) -> None:
    """Refuse to serve other machines without API keys, unless the settings say so.

    Raises:
        InputError: the server would be open to whoever reaches it.
    """
    if not is_loopback(settings.host) and not settings.open_access and not keys.all():
        raise InputError(
            "this address is reached by other machines, and there are no API keys",
            where=settings.host,
            hint="make one with: coinkv keys add NAME; or say --open-access on purpose",
        )


class AccessMiddleware:
    """Sets `request.state.namespace`, `.client` and `.api_key`, or refuses the request.

    The peer is who opened the connection: `X-Forwarded-For` can be written by anyone, so it is not
    read. Behind a proxy, clients are told apart by their keys.
    """

    def __init__(self, app: ASGIApp, settings: ServeSettings, keys: Keys) -> None:
        self.app = app
        self._keys = keys
        self._loopback = is_loopback(settings.host)
        self._guarded = not (self._loopback or settings.open_access)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with what is known of its client."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        key, refusal = self._judged(scope)
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        state: dict[str, Any] = scope.setdefault("state", {})
        state["api_key"] = key
        state["namespace"] = DEFAULT_NAMESPACE if key is None else key.namespace
        state["client"] = _peer(scope) if key is None else key.name
        await self.app(scope, receive, send)

    def _judged(self, scope: Scope) -> tuple[ApiKey | None, Refusal | None]:
        """The key of a request, or why it is refused."""
        path, given = scope["path"], _bearer(scope)
        key = self._keys.find(given)
        if not self._needs_key() or self._is_open(path):
            return None if key is None or key.expired else key, None
        if key is None:
            return None, _unknown("This API key is not valid." if given else _NO_KEY, given)
        if key.expired:
            return None, _unknown("This API key has expired.", given)
        if path == "/metrics" and key.namespace != DEFAULT_NAMESPACE:
            return None, _OF_THE_OPERATOR
        return key, None

    def _is_open(self, path: str) -> bool:
        return (
            path in OPEN_PATHS
            or path.startswith("/assets/")
            or (path == "/metrics" and self._loopback)
        )

    def _needs_key(self) -> bool:
        """Whether there are keys, or have been: taking the last one away opens nothing."""
        self._guarded = self._guarded or bool(self._keys.all())
        return self._guarded


_NO_KEY = "An API key is needed: send it as `Authorization: Bearer KEY`."
_OF_THE_OPERATOR = Refusal(
    403,
    f"Metrics are the whole server's: they need a key of the namespace {DEFAULT_NAMESPACE}.",
    "wrong_namespace",
    "permission_error",
)


def _unknown(message: str, given: str) -> Refusal:
    challenge = 'Bearer realm="coinkv"' + (', error="invalid_token"' if given else "")
    headers = {"www-authenticate": challenge}
    return Refusal(401, message, "invalid_api_key", "authentication_error", headers)


def _bearer(scope: Scope) -> str:
    """The key in the one Authorization header; nothing where there is none, or more than one."""
    values = [value for name, value in scope["headers"] if name == b"authorization"]
    if len(values) != 1:
        return ""
    scheme, _, secret = values[0].decode("latin-1").partition(" ")
    return secret.strip() if scheme.lower() == "bearer" else ""


def _peer(scope: Scope) -> str:
    """The address that asks, or its network: an IPv6 host has addresses without number."""
    if not scope.get("client"):
        return "local"
    host = scope["client"][0]
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return str(host)
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, _IPV6_NETWORK_BITS), strict=False))
    return str(address)
