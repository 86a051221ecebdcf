"""A server that says what a script tells it to, for the page: answers, citations and mishaps.

Run it beside `npm run dev`: `python -m browser.scripted_server` in the folder `tests`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, UploadFile
from fastapi.responses import JSONResponse, Response, StreamingResponse

from browser.scripted_content import ANSWER, DOCUMENTS, annotations, entry, facts, job
from coinkv.serve.api import page


@dataclass
class Script:
    """What the server does; tests change it while it runs."""

    pace_seconds: float = 0.03
    answer: str = ANSWER
    keys: tuple[str, ...] = ()
    indexes: list[dict[str, Any]] = field(default_factory=lambda: [entry("demo")])
    refusals: list[tuple[int, str, dict[str, str]]] = field(default_factory=list)
    """Statuses, messages and headers that the next chats get instead of an answer."""
    break_after: int | None = None
    """Words of an answer after which the connection breaks."""
    job: dict[str, Any] | None = None
    upload_refusal: tuple[int, str, dict[str, str]] | None = None
    asked: list[dict[str, Any]] = field(default_factory=list)
    keys_seen: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    left: int = 0
    """Clients that went away in the middle of an answer."""


def create_app(script: Script) -> FastAPI:
    """The scripted server: the page, and as much of the API as the page uses."""
    app = FastAPI()
    app.include_router(page.router)

    @app.middleware("http")
    async def guard(request: Request, call_next: Any) -> Response:
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if request.url.path.startswith("/v1/"):
            script.keys_seen.append(given)
        if script.keys and request.url.path.startswith("/v1/") and given not in script.keys:
            return refusal(401, "an API key is needed", {})
        return await call_next(request)

    @app.get("/v1/status")
    async def status() -> Any:
        limits = {"most_answer_tokens": 4096, "max_upload_bytes": 50_000, "max_files": 20}
        return {
            "model": "smollm2-135m-instruct",
            "version": "0.5.0",
            "ready": True,
            "context_length": 8192,
            "limits": limits,
        }

    @app.get("/v1/methods")
    async def methods() -> Any:
        notes = {"coinrag": "Nuggets, moved into place.", "standard_rag": "Full prefill."}
        data = [{"id": k, "note": note, "default": k == "coinrag"} for k, note in notes.items()]
        return {"object": "list", "data": data}

    @app.get("/v1/store")
    async def store() -> Any:
        tier = {"blocks": 412, "hits": 96}
        return {
            "tiers": [
                {"name": "memory", "bytes": 612_000_000, "budget_bytes": 2_000_000_000, **tier},
                {"name": "disk", "bytes": 4_310_000_000, "budget_bytes": 20_000_000_000, **tier},
            ],
            "runs": 38,
            "tokens": 26_551,
            "prompts": 127,
            "reuse": {"exact": 40_210, "moved": 12_944, "repaired": 611, "computed": 9_120},
            "reuse_rate": 0.855,
            "misses": 31,
            "hit_rate": 0.861,
            "indexes": [
                {k: e[k] for k in ("id", "documents", "chunks", "kv_bytes")} for e in script.indexes
            ],
        }

    add_index_routes(app, script)

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Any:
        body = await request.json()
        if script.refusals:
            return refusal(*script.refusals.pop(0))
        script.asked.append(body)
        return StreamingResponse(events(script, body), media_type="text/event-stream")

    return app


def add_index_routes(app: FastAPI, script: Script) -> None:
    """Indexes, documents and jobs."""

    @app.get("/v1/indexes")
    async def indexes() -> Any:
        return {"object": "list", "data": script.indexes}

    @app.post("/v1/indexes")
    async def create(request: Request) -> Any:
        made = entry((await request.json())["name"], state="empty", documents=0)
        script.indexes.append(made)
        return made

    @app.get("/v1/indexes/{name}/documents")
    async def documents(name: str) -> Any:
        data = [
            {"id": key, "title": title, "characters": len(text), "chunks": 1}
            for key, (title, text) in DOCUMENTS.items()
        ]
        return {"object": "list", "data": data, "has_more": False}

    @app.post("/v1/indexes/{name}/documents", status_code=202)
    async def add(name: str, files: list[UploadFile]) -> Any:
        if script.upload_refusal is not None:
            return refusal(*script.upload_refusal)
        if all(each["id"] != name for each in script.indexes):
            script.indexes.append(entry(name, state="building", documents=0))
        names = [str(file.filename) for file in files]
        bad = [{"file": each, "reason": "it holds no text"} for each in names if "bad" in each]
        script.job = job(index=name, documents=names, skipped=bad)
        return script.job

    @app.get("/v1/indexes/{name}/documents/{key:path}")
    async def document(name: str, key: str, start: int, end: int) -> Any:
        title, text = DOCUMENTS[key]
        return {
            "id": key,
            "title": title,
            "text": text[start:end],
            "start": start,
            "end": end,
            "characters": len(text),
        }

    @app.delete("/v1/indexes/{name}/documents/{key:path}", status_code=202)
    async def remove(name: str, key: str) -> Any:
        script.removed.append(key)
        script.job = job(index=name, kind="remove", documents=[key])
        return script.job

    @app.get("/v1/jobs/{name}/events")
    async def watch(name: str) -> Any:
        return StreamingResponse(job_events(script), media_type="text/event-stream")


async def job_events(script: Script) -> AsyncIterator[str]:
    """A job that encodes twelve chunks."""
    told = script.job or job()
    for done in range(3, 13):
        told = {**told, "done": done}
        yield f"event: progress\ndata: {json.dumps(told)}\n\n"
        await asyncio.sleep(script.pace_seconds)
    for index in script.indexes:
        index |= {"state": "ready", "documents": 2, "job": None}
    yield f"event: done\ndata: {json.dumps({**told, 'state': 'done'})}\n\n"


async def events(script: Script, body: dict[str, Any]) -> AsyncIterator[str]:
    """An answer, word by word."""
    cited = body["model"].startswith("coinrag/")
    method = body.get("method", "coinrag")
    words = script.answer.split(" ")
    await asyncio.sleep(script.pace_seconds * (10 if method == "standard_rag" else 2))
    opening: dict[str, Any] = {"role": "assistant", "content": ""}
    ending: dict[str, Any] = {}
    if cited:
        opening["annotations"] = annotations(script.answer, method=method, ended=False)
        ending["annotations"] = annotations(script.answer, method=method, ended=True)
    whole = False
    try:
        yield chunk(opening, coinkv=facts(body))
        for number, word in enumerate(words):
            if script.break_after == number:
                whole = True
                return
            yield chunk({"content": word if number == 0 else f" {word}"})
            await asyncio.sleep(script.pace_seconds)
        yield chunk(ending, finish="stop")
        usage = {"prompt_tokens": 336, "completion_tokens": len(words)}
        yield f"data: {json.dumps({'choices': [], 'usage': usage})}\n\n: ping\n\ndata: [DONE]\n\n"
        whole = True
    finally:
        script.left += not whole


def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> str:
    """A chunk of a chat completion, as an event."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return f"data: {json.dumps({'choices': [choice], **more})}\n\n"


def refusal(status: int, message: str, headers: dict[str, str]) -> JSONResponse:
    """An error in OpenAI's format."""
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
    return JSONResponse({"error": error}, status, headers)


@contextlib.contextmanager
def serving(script: Script, port: int = 0) -> Iterator[str]:
    """The base URL of a scripted server that runs inside the block."""
    config = uvicorn.Config(
        create_app(script), port=port, log_level="error", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, name="scripted-server")
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)


if __name__ == "__main__":
    with serving(Script(), port=8000) as url:
        print(url)
        threading.Event().wait()
