"""The official OpenAI client drives the server as it is."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from chatting import CHAT, CONTEXT, MOST_TOKENS, QUESTION, QUESTIONS, wait_until
from serving import Running, running, settings_for

from coinkv.config import DEFAULT_EMBEDDER
from coinkv.errors import BusyError
from coinkv.serve.security.keys import Keys

pytest_plugins = ("chat_fixtures",)

HELLO: Any = [{"role": "user", "content": "Marta counted 14 sheep."}]


@pytest.fixture
def client(chat_server: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{chat_server}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_a_chat_is_answered(client):
    reply = client.chat.completions.create(model=CHAT, messages=HELLO, max_tokens=8, n=2)
    assert [choice.finish_reason for choice in reply.choices] == ["length", "length"]
    assert reply.choices[0].message.content
    assert reply.usage.completion_tokens == 16
    assert reply.usage.prompt_tokens_details.cached_tokens >= 0
    assert reply.coinkv["ttft_ms"] > 0


def test_a_chat_streams(client):
    whole = client.chat.completions.create(model=CHAT, messages=HELLO, max_tokens=20)
    chunks = list(
        client.chat.completions.create(
            model=CHAT,
            messages=HELLO,
            max_tokens=20,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(pieces) == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == 20
    assert chunks[0].coinkv["queue_ms"] >= 0


def test_the_clients_own_way_of_joining_a_stream_gives_the_whole_answer(client):
    long = client.chat.completions.create(model=QUESTIONS, messages=QUESTION)
    asked: Any = {
        "model": QUESTIONS,
        "messages": QUESTION,
        "logprobs": True,
        "stop": long.choices[0].message.content[-3:],  # it takes a cut answer for an error
    }
    whole = client.chat.completions.create(**asked)
    with client.chat.completions.stream(**asked) as stream:
        for _ in stream:
            pass
        joined = stream.get_final_completion()
    message, expected = joined.choices[0].message, whole.choices[0].message
    assert message.content == expected.content
    assert joined.choices[0].finish_reason == whole.choices[0].finish_reason
    evidence = len(expected.annotations)
    # the evidence of the first chunk, then the list of the last one, which replaces it
    assert [each.document for each in message.annotations[evidence:]] == [
        each.document for each in expected.annotations
    ]
    assert joined.choices[0].logprobs.content == whole.choices[0].logprobs.content


def test_evidence_comes_as_annotations(client):
    reply = client.chat.completions.create(
        model=QUESTIONS,
        messages=QUESTION,
        extra_body={"method": "coinrag", "k_chunks": 2, "k_nuggets": 4},
    )
    annotations = reply.choices[0].message.annotations
    assert len(annotations) == 4
    assert {each.type for each in annotations} == {"url_citation"}
    assert annotations[0].url_citation.title == "bridge"
    assert annotations[0].quote == "The stone bridge was built in 1843 by Anna Holm."


def test_texts_are_completed_whole_and_streamed(client):
    whole = client.completions.create(model=CHAT, prompt=["a", "b"], max_tokens=9, logprobs=2)
    assert [choice.index for choice in whole.choices] == [0, 1]
    assert len(whole.choices[0].logprobs.tokens) == 9
    chunks = client.completions.create(model=CHAT, prompt=["a", "b"], max_tokens=9, stream=True)
    texts = {0: "", 1: ""}
    for chunk in chunks:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert [texts[0], texts[1]] == [choice.text for choice in whole.choices]


def test_texts_are_embedded(client):
    texts = ["The mill grinds rye.", "A bell rings."]
    packed = client.embeddings.create(model=DEFAULT_EMBEDDER, input=texts)  # asks for base64
    plain = client.embeddings.create(model=DEFAULT_EMBEDDER, input=texts, encoding_format="float")
    for one, other in zip(packed.data, plain.data, strict=True):
        np.testing.assert_allclose(one.embedding, other.embedding, atol=1e-6)
        assert len(one.embedding) == 384


def test_models_are_listed_and_found(client):
    assert {CHAT, QUESTIONS, DEFAULT_EMBEDDER} <= {model.id for model in client.models.list()}
    assert client.models.retrieve(QUESTIONS).owned_by == "coinkv"


def test_the_raw_response_has_the_requests_id(client):
    raw = client.chat.completions.with_raw_response.create(
        model=CHAT, messages=HELLO, extra_headers={"X-Request-Id": "mine-1"}
    )
    assert raw.headers["x-request-id"] == "mine-1"
    assert raw.request_id == "mine-1"
    assert raw.parse().coinkv["request_id"] == "mine-1"


def test_the_asynchronous_client_works_side_by_side(chat_server):
    async def play() -> list[str]:
        url = f"{chat_server}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:

            async def ask(seed: int) -> str:
                stream = await client.chat.completions.create(
                    model=CHAT, messages=HELLO, seed=seed, temperature=1, stream=True
                )
                pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
                return "".join(pieces)

            return list(await asyncio.gather(*(ask(seed % 2) for seed in range(6))))

    answers = asyncio.run(play())
    assert len(set(answers)) == 2
    assert answers[0::2] == answers[:1] * 3


def test_a_stream_that_is_closed_frees_its_slot(client, outcomes):
    stream = client.chat.completions.create(
        model=CHAT, messages=HELLO, max_tokens=MOST_TOKENS, stream=True
    )
    next(iter(stream))
    stream.close()
    wait_until(lambda: "cancelled" in outcomes)


def test_errors_are_the_clients_own_classes(client, chat_running, monkeypatch):
    create = client.chat.completions.create
    with pytest.raises(openai.BadRequestError) as bad:
        create(model=CHAT, messages=HELLO, tools=[{"type": "function"}])
    assert bad.value.param == "tools"
    with pytest.raises(openai.BadRequestError) as long:
        create(model=CHAT, messages=[{"role": "user", "content": "a " * CONTEXT}], stream=True)
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError) as missing:
        create(model="coinrag/none", messages=HELLO)
    assert missing.value.code == "model_not_found"

    def full(*_: object, **__: object) -> None:
        raise BusyError("full", retry_after_seconds=3)

    monkeypatch.setattr(chat_running.service.scheduler, "submit", full)
    with pytest.raises(openai.RateLimitError) as busy:
        create(model=CHAT, messages=HELLO)
    assert busy.value.response.headers["retry-after"] == "3"


def test_an_error_within_a_stream_is_raised_by_the_client(client, chat_running):
    stream = client.chat.completions.create(
        model=CHAT, messages=HELLO, max_tokens=MOST_TOKENS, stream=True, n=8
    )
    next(iter(stream))
    scheduler = chat_running.service.scheduler
    # what a shutdown does to a stream that does not end in time
    scheduler._shut_down(scheduler._left())
    with pytest.raises(openai.APIError, match="shutting down"):
        for _ in stream:
            pass


@pytest.fixture(scope="module")
def guarded(chat_running: Running, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A server with one key, and the key."""
    folder = tmp_path_factory.mktemp("guarded")
    settings = settings_for(folder, model=chat_running.service.settings.model)
    _, key = Keys(settings.data_dir).add("mine")
    with running(settings, chat_running.service.backbone) as server:
        yield server, key


def test_a_key_is_asked_for_and_taken(guarded: tuple[Running, str]):
    server, key = guarded
    url = f"{server.url}/v1"
    with openai.OpenAI(base_url=url, api_key=key, max_retries=0) as client:
        reply = client.chat.completions.create(model=CHAT, messages=HELLO, max_tokens=2)
        assert reply.usage.completion_tokens == 2
        status: Any = client.get("/status", cast_to=dict[str, Any])
        assert status["needs_key"] is True
        paths = httpx.get(f"{server.url}/openapi.json").json()["paths"]
        assert paths["/v1/models"]["get"]["security"] == [{"HTTPBearer": []}]
    with openai.OpenAI(base_url=url, api_key="wrong", max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError):
            client.chat.completions.create(model=CHAT, messages=HELLO)
        with pytest.raises(openai.AuthenticationError):
            client.models.list()
