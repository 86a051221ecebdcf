"""LangChain's OpenAI classes drive the server as they are, without any other network."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
from chatting import CHAT, CONTEXT, QUESTIONS
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings

from coinkv.config import DEFAULT_EMBEDDER

pytest_plugins = ("chat_fixtures",)


@pytest.fixture(autouse=True)
def loopback_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever looks another host up has asked for a download."""
    look_up = socket.getaddrinfo

    def only_loopback(host: Any, *arguments: Any, **more: Any) -> Any:
        assert host in ("127.0.0.1", b"127.0.0.1", "localhost"), f"looked up {host}"
        return look_up(host, *arguments, **more)

    monkeypatch.setattr(socket, "getaddrinfo", only_loopback)


def chat(url: str, **more: Any) -> ChatOpenAI:
    given = {"model": CHAT, "max_tokens": 12, "max_retries": 0, **more}
    return ChatOpenAI(base_url=f"{url}/v1", api_key="none", **given)


def test_a_conversation_is_answered(chat_server):
    turns = [
        SystemMessage("Be brief."),
        HumanMessage("Marta counted the sheep."),
        AIMessage("So she did."),
        HumanMessage([{"type": "text", "text": "How many?"}]),
    ]
    reply = chat(chat_server).invoke(turns)
    assert isinstance(reply.content, str)
    assert reply.usage_metadata["output_tokens"] == 12
    again = chat(chat_server).invoke(turns)
    assert again.content == reply.content
    cached = again.usage_metadata["input_token_details"]["cache_read"]
    assert cached > again.usage_metadata["input_tokens"] // 2


def test_a_stream_joined_is_the_answer(chat_server):
    model = chat(chat_server, stream_usage=True)
    whole = model.invoke("Marta counted 14 sheep.")
    pieces = list(model.stream("Marta counted 14 sheep."))
    assert len(pieces) > 5
    joined = pieces[0]
    for piece in pieces[1:]:
        joined += piece
    assert joined.content == whole.content
    assert joined.usage_metadata["output_tokens"] == 12
    assert joined.response_metadata["finish_reason"] == "length"


def test_a_question_to_an_index_takes_its_options(chat_server):
    model = chat(chat_server, model=QUESTIONS, extra_body={"method": "coinrag", "k_nuggets": 3})
    reply = model.invoke("Who built the stone bridge?")
    pieces = list(model.stream("Who built the stone bridge?"))
    assert "".join(str(piece.content) for piece in pieces) == reply.content


def test_probabilities_seeds_and_stop_strings_are_passed_on(chat_server):
    model = chat(chat_server, temperature=1, seed=3, logprobs=True, top_logprobs=2)
    reply = model.invoke("Marta")
    assert len(reply.response_metadata["logprobs"]["content"]) == 12
    assert model.invoke("Marta").content == reply.content
    stop = str(reply.content)[4:6]
    cut = model.invoke("Marta", stop=[stop])
    assert cut.content == str(reply.content).split(stop)[0]


def test_many_questions_are_asked_at_once(chat_server):
    model = chat(chat_server)
    texts = [f"Sheep number {number}" for number in range(4)]
    singles = [model.invoke(text).content for text in texts]
    assert [reply.content for reply in model.batch(texts)] == singles
    replies = asyncio.run(model.abatch(texts))
    assert [reply.content for reply in replies] == singles


def test_texts_are_completed_and_streamed(chat_server):
    model = OpenAI(
        base_url=f"{chat_server}/v1", api_key="none", model=CHAT, max_tokens=10, temperature=0
    )
    whole = model.invoke("Marta counted")
    assert whole
    assert "".join(model.stream("Marta counted")) == whole
    result = model.generate(["Marta counted", "The river"], stop=["zzz"])
    assert result.generations[0][0].text == whole
    assert result.llm_output["token_usage"]["completion_tokens"] == 20


def test_documents_and_queries_are_embedded(chat_server, chat_running):
    model = OpenAIEmbeddings(
        base_url=f"{chat_server}/v1",
        api_key="none",
        model=DEFAULT_EMBEDDER,
        check_embedding_ctx_length=False,
    )
    texts = ["The mill grinds rye.", "A bell rings."]
    expected = chat_running.service.models.embed(texts)
    assert model.embed_documents(texts) == pytest.approx(expected, abs=1e-6)
    assert model.embed_query(texts[0]) == pytest.approx(expected[0], abs=1e-6)


def test_a_prompt_that_is_too_long_is_langchains_own_error(chat_server):
    from langchain_core.exceptions import ContextOverflowError

    with pytest.raises(ContextOverflowError):
        chat(chat_server).invoke("sheep " * CONTEXT)
