"""A thousand hostile inputs leave the server as it was: it answers, and holds nothing of them."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections import Counter
from contextlib import suppress

import httpx
import pytest
from chatting import CHAT
from hostile_inputs import Attack, attacks, slow_attacks
from hostile_server import attacked

from coinkv.config import DEFAULT_EMBEDDER

COUNT = 1_200
AT_A_TIME = 48
PATIENCE_SECONDS = 60.0
STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) [A-Z]")


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    """A server of these tests' own."""
    with attacked(tmp_path_factory.mktemp("hostile")) as server:
        yield server


async def answer_to(port: int, attack: Attack) -> bytes:
    """Send it; what came back until the server, or the attacker, closed the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    sending = asyncio.create_task(send(writer, attack))
    answer = b""
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            if attack.leaves_after == 0:
                await sending
            while attack.leaves_after is None or len(answer) < attack.leaves_after:
                piece = await reader.read(65_536)
                if not piece:
                    break
                answer += piece
    except ConnectionError:
        pass  # the server has closed what it had not read to the end
    finally:
        sending.cancel()
        writer.transport.abort()
    return answer


async def send(writer: asyncio.StreamWriter, attack: Attack) -> None:
    with suppress(ConnectionError):
        if not attack.drip_seconds:
            writer.write(attack.sent)
            await writer.drain()
            return
        for byte in attack.sent:
            writer.write(bytes([byte]))
            await asyncio.sleep(attack.drip_seconds)


async def all_answers(port: int, inputs: list[Attack]) -> list[tuple[Attack, bytes]]:
    places = asyncio.Semaphore(AT_A_TIME)

    async def one(attack: Attack) -> tuple[Attack, bytes]:
        async with places:
            return attack, await answer_to(port, attack)

    return await asyncio.gather(*map(one, inputs))


def tasks_of(server) -> int:
    """Tasks on the server's event loop."""

    async def count() -> int:
        return len(asyncio.all_tasks()) - 1

    return asyncio.run_coroutine_threadsafe(count(), server.loop).result(10)


def settled(server, tasks: int) -> bool:
    """Wait until nothing of the attackers is left."""
    for _ in range(600):
        load = server.service.scheduler.load()
        if not load.busy and load.live_tokens == 0 and tasks_of(server) <= tasks:
            return True
        time.sleep(0.1)
    return False


def ask(server) -> list[str]:
    """A normal question to each engine."""
    said = []
    with httpx.Client(base_url=server.url, timeout=60) as client:
        for model in (CHAT, "coinrag/index"):
            messages = [{"role": "user", "content": "Who built the stone bridge?"}]
            chat = {"model": model, "messages": messages, "max_tokens": 12}
            reply = client.post("/v1/chat/completions", json=chat)
            assert reply.status_code == 200, reply.text
            said.append(reply.json()["choices"][0]["message"]["content"])
            streamed = client.post("/v1/chat/completions", json={**chat, "stream": True})
            assert streamed.text.rstrip().endswith("[DONE]"), streamed.text
    return said


def require_error_object(attack: Attack, answer: bytes) -> None:
    """Errors have the one format, whoever found them."""
    head, _, content = answer.partition(b"\r\n\r\n")
    if b"application/json" not in head.lower() or not content:
        return
    error = json.loads(content[: content.rindex(b"}") + 1])["error"]
    assert set(error) == {"message", "type", "param", "code"}, attack
    assert isinstance(error["message"], str), attack


def test_a_thousand_hostile_inputs_leave_the_server_healthy(target, caplog):
    port = int(target.url.rpartition(":")[2])
    before = ask(target)
    assert settled(target, tasks=100)
    tasks = tasks_of(target)
    inputs = [*attacks(5, CHAT, DEFAULT_EMBEDDER, COUNT), *slow_attacks(CHAT, seconds=3.0)]
    assert len(inputs) > 1_000
    with caplog.at_level(logging.ERROR):
        answers = asyncio.run(all_answers(port, inputs))
    statuses = Counter()
    for attack, answer in answers:
        given = [int(status) for status in STATUS.findall(answer)]
        statuses.update(given)
        told = (attack.kind, attack.sent[:300], answer[:500])
        assert {status for status in given if status >= 500} <= {503, 504}, told
        assert given or attack.leaves_after is not None, told
        if len(given) == 1 and given[0] >= 400 and attack.leaves_after is None:
            require_error_object(attack, answer)
    assert {200, 400, 404, 405, 408, 413, 414, 415, 421, 431} <= set(statuses), statuses
    assert [record.getMessage() for record in caplog.records] == []
    assert settled(target, tasks), (target.service.scheduler.load(), tasks, tasks_of(target))
    assert ask(target) == before


@pytest.mark.parametrize("where", ["the body", "messages[0]"])
def test_a_thousand_unknown_fields_are_one_error(target, where):
    unknown = {f"x{number}": 0 for number in range(1_000)}
    message = {"role": "user", "content": "Who?"}
    body = {"model": CHAT, "messages": [message], **unknown}
    if where != "the body":
        body = {"model": CHAT, "messages": [{**message, **unknown}]}
    reply = httpx.post(f"{target.url}/v1/chat/completions", json=body)
    assert reply.status_code == 400
    said = reply.json()["error"]["message"]
    assert said.startswith(where)
    assert "too many fields" in said
