"""LlamaIndex's OpenAI classes drive the server as they are, without any other network."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
from chatting import CHAT, CONTEXT, QUESTIONS
from llama_index.core.llms import ChatMessage
from llama_index.embeddings.openai import OpenAIEmbedding
from llama_index.llms.openai import OpenAI
from llama_index.llms.openai_like import OpenAILike

pytest_plugins = ("chat_fixtures",)

TURNS = [
    ChatMessage(role="system", content="Be brief."),
    ChatMessage(role="user", content="Marta counted 14 sheep."),
]


@pytest.fixture(autouse=True)
def loopback_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever looks another host up has asked for a download."""
    look_up = socket.getaddrinfo

    def only_loopback(host: Any, *arguments: Any, **more: Any) -> Any:
        assert host in ("127.0.0.1", b"127.0.0.1", "localhost"), f"looked up {host}"
        return look_up(host, *arguments, **more)

    monkeypatch.setattr(socket, "getaddrinfo", only_loopback)


def alias(url: str, model: str = "gpt-4o-mini", **more: Any) -> OpenAI:
    """LlamaIndex's class takes OpenAI's own names only: the server has an alias of that name."""
    given = {"max_tokens": 12, "temperature": 0, "max_retries": 0, **more}
    return OpenAI(model=model, api_base=f"{url}/v1", api_key="none", **given)


def like(url: str, model: str, *, chats: bool = True, **more: Any) -> OpenAILike:
    return OpenAILike(
        model=model,
        api_base=f"{url}/v1",
        api_key="none",
        is_chat_model=chats,
        context_window=CONTEXT,
        max_tokens=12,
        temperature=0,
        max_retries=0,
        **more,
    )


def test_a_chat_is_answered_through_an_alias(chat_server):
    reply = alias(chat_server).chat(TURNS)
    assert reply.message.content
    assert reply.raw.usage.completion_tokens == 12
    assert reply.message.content == like(chat_server, CHAT).chat(TURNS).message.content


def test_a_chat_streams(chat_server):
    for model in (alias(chat_server), like(chat_server, CHAT)):
        pieces = list(model.stream_chat(TURNS))
        assert "".join(piece.delta or "" for piece in pieces) == model.chat(TURNS).message.content


def test_a_text_is_completed_by_a_chat_model_and_by_one_that_completes(chat_server):
    assert alias(chat_server).complete("Marta counted").text
    model = like(chat_server, CHAT, chats=False)
    whole = model.complete("Marta counted").text
    assert whole
    assert "".join(piece.delta or "" for piece in model.stream_complete("Marta counted")) == whole
    instruct = alias(chat_server, "gpt-3.5-turbo-instruct")
    assert instruct.complete("Marta counted").text == whole


def test_a_question_is_asked_of_an_index(chat_server):
    model = like(chat_server, QUESTIONS, additional_kwargs={"extra_body": {"method": "coinrag"}})
    question = [ChatMessage(role="user", content="Who built the stone bridge?")]
    reply = model.chat(question)
    annotations = reply.raw.choices[0].message.annotations
    assert annotations[0].document == "bridge.txt"
    pieces = list(model.stream_chat(question))
    assert "".join(piece.delta or "" for piece in pieces) == reply.message.content


def test_the_asynchronous_methods_answer_the_same(chat_server):
    async def play() -> tuple[str | None, str]:
        model = like(chat_server, CHAT)
        whole = (await model.achat(TURNS)).message.content
        pieces = [piece.delta or "" async for piece in await model.astream_chat(TURNS)]
        return whole, "".join(pieces)

    whole, joined = asyncio.run(play())
    assert whole == joined


def test_texts_are_embedded(chat_server, chat_running):
    model = OpenAIEmbedding(
        model="text-embedding-3-small", api_base=f"{chat_server}/v1", api_key="none"
    )
    texts = ["The mill grinds rye.", "A bell rings."]
    expected = chat_running.service.models.embed(texts)
    assert model.get_text_embedding_batch(texts) == pytest.approx(expected, abs=1e-6)
    assert model.get_query_embedding(texts[0]) == pytest.approx(expected[0], abs=1e-6)
