"""The application: every route, and what stands between a connection and a route."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI

import coinkv
from coinkv.serve.api import (
    chat,
    completions,
    documents,
    embeddings,
    health,
    indexes,
    jobs,
    models,
    page,
    status,
    store,
)
from coinkv.serve.api.declared import errors_declared, with_keys_optional
from coinkv.serve.api.errors import install_errors
from coinkv.serve.observe.install import install as install_observers
from coinkv.serve.security.install import install as install_guards
from coinkv.serve.service import Service

_ROUTES = (
    chat,
    completions,
    embeddings,
    models,
    indexes,
    documents,
    jobs,
    store,
    status,
    health,
    page,
)
_DESCRIPTION = """\
An OpenAI-compatible API over reusable KV. The model's name chooses the engine: the backbone's own
name answers any prompt, `coinrag/NAME` answers questions over an index.
"""


class _Application(FastAPI):
    """Says of itself whether it asks for API keys now."""

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI document."""
        document = super().openapi()
        return document if self.state.needs_key() else with_keys_optional(document)


def create_app(service: Service) -> FastAPI:
    """The ASGI application that serves a service; it starts and closes the service with itself.

    Args:
        service: what answers.

    Raises:
        StorageError: the file of API keys cannot be read.
        InputError: traces are asked for that cannot be sent.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        await service.close()

    app = _Application(
        title="coinkv",
        version=coinkv.__version__,
        description=_DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,  # the framework's own pages load their scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        responses=errors_declared(),
    )
    app.state.service = service
    for module in _ROUTES:
        app.include_router(module.router)
    install_errors(app)
    keys = install_guards(app, service.settings)
    app.state.needs_key = lambda: bool(keys.all())
    install_observers(app, service)
    return app
