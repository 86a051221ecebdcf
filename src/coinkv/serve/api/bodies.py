"""Reading bodies: JSON as RFC 8259 has it, sent as what it is."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from email.message import Message
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic_core import from_json
from starlette.exceptions import HTTPException


class StrictRequest(Request):
    """A request whose body is parsed without leniency: no NaN, no lone surrogates, no endless
    nesting, and UTF-8 only.
    """

    async def json(self) -> Any:
        """The parsed body."""
        try:
            return from_json(await self.body(), allow_inf_nan=False)
        except ValueError as error:
            raise HTTPException(400, f"the body is no JSON: {error}") from error


class JsonRoute(APIRoute):
    """A route that takes JSON, or no body at all."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The route's handler behind the check of what it is sent."""
        handle = super().get_route_handler()

        async def strict(request: Request) -> Response:
            if self.body_field is not None:
                _require_json(request)
            return await handle(StrictRequest(request.scope, request.receive))

        return strict


def _require_json(request: Request) -> None:
    header = Message()
    header["content-type"] = request.headers.get("content-type", "none/none")
    if header.get_content_maintype() != "application" or not (
        header.get_content_subtype() == "json" or header.get_content_subtype().endswith("+json")
    ):
        raise HTTPException(
            415, "the body's content type is not application/json; send it with that header"
        )
