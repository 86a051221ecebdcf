"""Names of a server whose tiny model chats and ends no answer by itself; reading its replies."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import httpx

from coinkv.config import DEFAULT_EMBEDDER

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}[{{ message['role'] }}]\n"
    "{{ message['content'] }}\n{% endfor %}[assistant]\n"
)
CHAT, QUESTIONS = "tiny-chat", "coinrag/index"
ALIASES = {
    "gpt-4o-mini": CHAT,
    "gpt-3.5-turbo-instruct": CHAT,
    "text-embedding-3-small": DEFAULT_EMBEDDER,
}
MOST_TOKENS = 1500
CONTEXT = 2048
QUESTION = [{"role": "user", "content": "Who built the stone bridge?"}]


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Wait for something that must come to be."""
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, "it never came to be"
        time.sleep(0.005)


def events_of(text: str) -> list[Any]:
    """The data of a stream's events, without the closing `[DONE]`, which must be there."""
    data = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
    assert data[-1] == "[DONE]"
    return [json.loads(each) for each in data[:-1]]


def error_of(reply: httpx.Response, status: int) -> dict[str, Any]:
    """The error object of a reply, which must have this status."""
    assert reply.status_code == status, reply.text
    body = reply.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert "\n" not in body["error"]["message"]
    error: dict[str, Any] = body["error"]
    return error
