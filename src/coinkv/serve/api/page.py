"""The page at `/`: files that `npm run build` in `web/` has put into the package, and no others."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from importlib.resources import files
from pathlib import PurePath

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

router = APIRouter(include_in_schema=False)

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
"""What the page may do: no inline script or style, nothing from elsewhere, and no text that
becomes markup (trusted types), whatever a document or an answer contains."""

_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
# A file's name changes with its content, so what a browser has once is right for ever.
_FOREVER = "public, max-age=31536000, immutable"


@dataclass(frozen=True)
class _Asset:
    content: bytes
    media_type: str
    etag: str


@router.head("/")
@router.get("/")
async def page(request: Request) -> Response:
    """The page itself: asked for anew each time, so that a new version is seen at once."""
    index = _assets()["index.html"]
    headers = {
        "etag": index.etag,
        "cache-control": "no-cache",
        "content-security-policy": CONTENT_SECURITY_POLICY,
    }
    if index.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(index.content, headers=headers, media_type=index.media_type)


@router.get("/assets/{name}")
async def asset(name: str) -> Response:
    """A script, style sheet or icon of the page; `name` is looked up, never opened."""
    found = _assets().get(f"assets/{name}")
    if found is None:
        raise HTTPException(404, "the page has no such file")
    headers = {"cache-control": _FOREVER, "x-content-type-options": "nosniff"}
    return Response(found.content, headers=headers, media_type=found.media_type)


@functools.cache
def _assets() -> dict[str, _Asset]:
    """All files of the page, a hundred kilobytes or so, by their path in it."""
    folder = files("coinkv.serve").joinpath("page")
    entries = {"index.html": folder.joinpath("index.html")}
    entries |= {f"assets/{entry.name}": entry for entry in folder.joinpath("assets").iterdir()}
    return {path: _read(path, entry.read_bytes()) for path, entry in entries.items()}


def _read(path: str, content: bytes) -> _Asset:
    media_type = _MEDIA_TYPES.get(PurePath(path).suffix, "application/octet-stream")
    return _Asset(content, media_type, f'"{hashlib.sha256(content).hexdigest()[:32]}"')
