"""All that stands between a connection and a route, in the order in which a request meets it."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from coinkv.serve.security.access import AccessMiddleware
from coinkv.serve.security.body import BodyMiddleware
from coinkv.serve.security.heads import HeadMiddleware
from coinkv.serve.security.hosts import HostMiddleware, OriginMiddleware
from coinkv.serve.security.keys import Keys
from coinkv.serve.security.rates import RateMiddleware
from coinkv.serve.security.replies import ReplyMiddleware
from coinkv.serve.settings import ServeSettings


def install(app: FastAPI, settings: ServeSettings) -> Keys:
    """Guard an application: what is added to it later stands outside of the guards.

    Returns:
        The keys of the server, which `require_safe_binding` asks for.

    Raises:
        StorageError: the file of keys is damaged or cannot be read.
    """
    keys = Keys(settings.data_dir)
    # Starlette puts what is added last on the outside: a request meets these from below
    app.add_middleware(RateMiddleware, settings=settings)
    app.add_middleware(AccessMiddleware, settings=settings, keys=keys)
    app.add_middleware(HostMiddleware, settings=settings)
    app.add_middleware(HeadMiddleware)
    app.add_middleware(BodyMiddleware, settings=settings)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=("GET", "POST", "DELETE"),
            allow_headers=("*",),
            expose_headers=("retry-after", "x-request-id"),
        )
    app.add_middleware(OriginMiddleware, settings=settings)
    app.add_middleware(ReplyMiddleware)
    return keys
