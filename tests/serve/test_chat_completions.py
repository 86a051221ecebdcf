"""Chat completions: whole and streamed, with the backbone and over an index."""

from __future__ import annotations

import contextlib
import json
import socket
from typing import Any

import httpx
import pytest
import torch
from chatting import (
    CHAT,
    CONTEXT,
    MOST_TOKENS,
    QUESTION,
    QUESTIONS,
    error_of,
    events_of,
    wait_until,
)
from safetensors.torch import save_file
from serving import Running

from coinkv.boost.engine import KVBoost
from coinkv.methods.registry import method_named
from coinkv.model.decode import Sampling
from coinkv.rag.ask import CoinRAG
from coinkv.serve.api.schemas.chat import ChatCompletion, ChatCompletionChunk
from coinkv.store.tiers import Tiers
from raw_http import until
from small_corpus import DOCUMENTS

pytest_plugins = ("chat_fixtures",)

HELLO = [{"role": "user", "content": "Marta counted 14 sheep."}]


def ask(http: httpx.Client, **body: Any) -> httpx.Response:
    given = {"model": CHAT, "messages": HELLO, **body}
    return http.post("/v1/chat/completions", json=given)


def answer(http: httpx.Client, **body: Any) -> Any:
    reply = ask(http, **body)
    assert reply.status_code == 200, reply.text
    ChatCompletion.model_validate(reply.json())
    return reply.json()


def stream(http: httpx.Client, **body: Any) -> list[Any]:
    reply = ask(http, stream=True, **body)
    assert reply.status_code == 200, reply.text
    chunks = events_of(reply.text)
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk)
    return chunks


def text_of(chunks: list[Any], choice: int = 0) -> str:
    deltas = [c for chunk in chunks for c in chunk["choices"] if c["index"] == choice]
    return "".join(each["delta"].get("content") or "" for each in deltas)


def test_an_answer_of_the_backbone_is_the_librarys(http, chat_running):
    with KVBoost(chat_running.service.backbone, Tiers(10_000_000)) as boost:
        expected = boost.generate(HELLO, sampling=Sampling(20))
    reply = answer(http, max_tokens=20)
    assert reply["choices"][0]["message"]["content"] == expected.text
    assert reply["usage"]["prompt_tokens"] == expected.prompt_tokens
    assert reply["usage"]["completion_tokens"] == 20
    assert reply["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("method", ["coinrag", "standard_rag"])
def test_an_answer_over_an_index_is_the_librarys(http, chat_running, method):
    with chat_running.service.library.open("default", "index") as index:
        asker = CoinRAG(index, method=method, k_chunks=2, k_nuggets=3)
        expected = asker.ask(QUESTION[0]["content"], sampling=Sampling(20, first_line=True))
    reply = answer(
        http,
        model=QUESTIONS,
        messages=QUESTION,
        method=method,
        k_chunks=2,
        k_nuggets=3,
        max_tokens=20,
    )
    assert reply["choices"][0]["message"]["content"] == expected.text
    assert reply["coinkv"]["method"] == method
    assert reply["coinkv"]["len_tokens"] == expected.len_tokens
    found = [
        (each["document"], each["start"], each["end"], each["quote"])
        for each in reply["choices"][0]["message"]["annotations"]
    ]
    assert found == [(e.document, e.start, e.end, e.text) for e in expected.evidence]


@pytest.mark.parametrize("model", [CHAT, QUESTIONS])
def test_a_stream_says_what_the_whole_reply_says(http, model):
    whole = answer(http, model=model, messages=QUESTION, max_tokens=17)
    chunks = stream(
        http,
        model=model,
        messages=QUESTION,
        max_tokens=17,
        stream_options={"include_usage": True},
    )
    assert text_of(chunks) == whole["choices"][0]["message"]["content"]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    reasons = [c["finish_reason"] for chunk in chunks for c in chunk["choices"]]
    assert [each for each in reasons if each] == [whole["choices"][0]["finish_reason"]]
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert chunks[0]["coinkv"].keys() == whole["coinkv"].keys() - {"decode_ms"}
    assert len({chunk["id"] for chunk in chunks}) == 1


def test_without_being_asked_a_stream_does_not_count_tokens(http):
    assert all("usage" not in chunk for chunk in stream(http))


def test_evidence_comes_with_the_first_chunk_and_again_with_the_last(http):
    chunks = stream(http, model=QUESTIONS, messages=QUESTION)
    first = chunks[0]["choices"][0]["delta"]["annotations"]
    last = chunks[-1]["choices"][0]["delta"]["annotations"]
    assert [each["quote"] for each in last[: len(first)]] == [each["quote"] for each in first]
    assert [each["index"] for each in [*first, *last]] == list(range(len(first) + len(last)))
    bridge = next(each for each in first if each["document"] == "bridge.txt")
    assert DOCUMENTS["bridge.txt"][bridge["start"] : bridge["end"]] == bridge["quote"]
    assert bridge["url_citation"]["url"] == (
        f"/v1/indexes/index/documents/bridge.txt#char={bridge['start']},{bridge['end']}"
    )
    assert bridge["chunk_start"] <= bridge["start"] < bridge["end"] <= bridge["chunk_end"]


def test_a_cited_part_of_an_answer_is_where_the_annotation_says(http, monkeypatch):
    from coinkv.rag.citations import Citation

    ranges = (Citation(0, 3, 1), Citation(4, 9, 1))
    monkeypatch.setattr("coinkv.serve.engines.questions.cite", lambda *_: ranges)
    reply = answer(http, model=QUESTIONS, messages=QUESTION, k_nuggets=3)
    annotations = reply["choices"][0]["message"]["annotations"]
    places = [
        (each["url_citation"]["start_index"], each["url_citation"]["end_index"])
        for each in annotations
    ]
    assert places == [(0, 0), (0, 3), (0, 0), (4, 9)]
    assert annotations[1]["quote"] == annotations[3]["quote"]


def test_choices_are_what_their_seeds_give_one_by_one(http):
    drawn = {"temperature": 1.5, "max_tokens": 15}
    several = answer(http, n=3, seed=7, **drawn)
    singles = [answer(http, seed=seed, **drawn) for seed in (7, 8, 9)]
    texts = [each["message"]["content"] for each in several["choices"]]
    assert texts == [each["choices"][0]["message"]["content"] for each in singles]
    assert len(set(texts)) == 3
    assert several["usage"]["completion_tokens"] == 45
    chunks = stream(http, n=3, seed=7, **drawn)
    assert [text_of(chunks, choice) for choice in range(3)] == texts


def test_a_negative_seed_repeats_itself_too(http):
    drawn = {"temperature": 1.5, "max_tokens": 15, "seed": -1, "n": 2}
    assert [c["message"] for c in answer(http, **drawn)["choices"]] == [
        c["message"] for c in answer(http, **drawn)["choices"]
    ]


def test_a_stop_string_ends_the_answer_before_itself(http):
    full = answer(http, max_tokens=20)["choices"][0]["message"]["content"]
    stop = full[8:10]
    cut = full[: full.index(stop)]
    for given in (stop, ["never said", stop]):
        choice = answer(http, max_tokens=20, stop=given)["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == (cut, "stop")
        chunks = stream(http, max_tokens=20, stop=given)
        assert text_of(chunks) == cut
        assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


def test_a_prompt_that_came_before_is_reused_and_said_to_be(http):
    messages = [{"role": "user", "content": "The dog and the lamp. " * 12}]
    first = answer(http, messages=messages, max_tokens=1)
    again = answer(http, messages=messages, max_tokens=1)
    tokens = first["usage"]["prompt_tokens"]
    cached = again["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert 0 < tokens - cached <= 8
    assert again["coinkv"]["cached_tokens"] == again["coinkv"]["reuse"]["exact"] == cached
    anew = answer(http, messages=messages, max_tokens=1, reuse="none")
    assert anew["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_the_time_to_the_first_token_is_the_queue_and_all_stages(http):
    for model in (CHAT, QUESTIONS):
        told = answer(http, model=model, messages=QUESTION)["coinkv"]
        stages = told["queue_ms"] + sum(told["stages_ms"].values())
        assert told["ttft_ms"] == pytest.approx(stages, abs=0.1)


def test_parts_of_a_message_and_the_developers_role_are_understood(http):
    plain = [{"role": "system", "content": "Be\nbrief."}, *HELLO]
    parts = [
        {
            "role": "developer",
            "content": [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief."}],
        },
        *HELLO,
    ]
    assert (
        answer(http, messages=plain)["choices"][0]["message"]
        == answer(http, messages=parts)["choices"][0]["message"]
    )


def test_an_answer_can_be_sent_back_as_the_client_has_it(http):
    message = answer(http, model=QUESTIONS, messages=QUESTION)["choices"][0]["message"]
    sent = {**message, "audio": None, "function_call": None, "tool_calls": None}
    answer(http, messages=[*HELLO, sent, *HELLO])


def test_probabilities_spell_the_answer_byte_by_byte(http):
    reply = answer(http, max_tokens=25, logprobs=True, top_logprobs=3)
    content = reply["choices"][0]["logprobs"]["content"]
    assert len(content) == 25
    spelled = bytes(byte for token in content for byte in token["bytes"])
    assert spelled.decode("utf-8", "replace") == reply["choices"][0]["message"]["content"]
    for token in content:
        assert len(token["top_logprobs"]) == 3
        assert token["logprob"] == token["top_logprobs"][0]["logprob"] <= 0  # greedy
        assert token["token"] == token["top_logprobs"][0]["token"]
        assert token["token"].encode() == bytes(token["bytes"]) or token["token"].startswith(
            "bytes:\\x"
        )
    chunks = stream(http, max_tokens=25, logprobs=True, top_logprobs=3)
    pieces = [c["logprobs"] for chunk in chunks for c in chunk["choices"] if c["logprobs"]]
    assert [each for piece in pieces for each in piece["content"]] == content


def test_without_top_logprobs_only_the_chosen_token_is_told(http):
    content = answer(http, logprobs=True)["choices"][0]["logprobs"]["content"]
    assert all(token["top_logprobs"] == [] for token in content)
    error = error_of(ask(http, top_logprobs=2), 400)
    assert error["param"] == "top_logprobs"


def test_longer_answers_than_the_server_gives_are_refused(http):
    for field in ("max_tokens", "max_completion_tokens"):
        error = error_of(ask(http, **{field: MOST_TOKENS + 1}), 400)
        assert error["param"] == field
        assert str(MOST_TOKENS) in error["message"]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("model", [CHAT, QUESTIONS])
def test_a_prompt_beyond_the_context_is_told_by_its_code(http, model, streamed):
    long = [{"role": "user", "content": "sheep " * CONTEXT}]
    error = error_of(ask(http, model=model, messages=long, stream=streamed), 400)
    assert error["code"] == "context_length_exceeded"
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("model", "field", "value"),
    [
        (CHAT, "method", "coinrag"),
        (CHAT, "k_chunks", 2),
        (CHAT, "options", {}),
        (CHAT, "condense", "off"),
        (CHAT, "answer_lead", "It is"),
        (QUESTIONS, "reuse", "none"),
        (QUESTIONS, "repair", "none"),
    ],
)
def test_a_field_of_the_other_engine_is_refused_by_name(http, model, field, value):
    assert error_of(ask(http, model=model, **{field: value}), 400)["param"] == field


@pytest.mark.parametrize("field", ["method", "options"])
def test_what_a_method_cannot_do_is_the_clients_error_and_names_the_field(http, field):
    wrong = {"method": "magic", "options": {"no_such": 1}}
    error = error_of(ask(http, model=QUESTIONS, messages=QUESTION, **{field: wrong[field]}), 400)
    assert error["param"] == field


@pytest.mark.parametrize("method", ["kvlink", "coinrag_kvlink"])
def test_no_request_can_name_a_file_by_an_option(http, monkeypatch, method):
    monkeypatch.setattr("coinkv.methods.links._read", lambda *_: pytest.fail("a file was opened"))
    monkeypatch.setattr("coinkv.methods.links._version", lambda _: pytest.fail("looked for"))
    for value in ("/etc/passwd", "none", None):
        named = {"method": method, "options": {"embeddings": value}}
        error = error_of(ask(http, model=QUESTIONS, messages=QUESTION, **named), 400)
        assert error["param"] == "options"
        assert "method_options" in error["message"]


def test_the_servers_own_method_has_options_that_a_request_may_change(
    http, chat_running, monkeypatch, tmp_path
):
    service, trained = chat_running.service, tmp_path / "links.safetensors"
    hidden = service.backbone.model.config.hidden_size
    save_file({"link_embeddings": torch.randn(9, 2, hidden)}, trained)
    options = {"links": 2, "embeddings": str(trained)}
    changed = {"method": "kvlink", "method_options": options}
    monkeypatch.setattr(service, "settings", service.settings.model_copy(update=changed))
    with service.library.open("default", "index") as index:
        asker = CoinRAG(index, method=method_named("kvlink", options))
        expected = asker.ask(QUESTION[0]["content"], sampling=Sampling(12, first_line=True))
    body = {"model": QUESTIONS, "messages": QUESTION, "max_tokens": 12}
    reply = answer(http, **body)
    assert reply["choices"][0]["message"]["content"] == expected.text
    assert reply["coinkv"]["len_tokens"] == expected.len_tokens
    error = error_of(ask(http, **body, options={"links": 3}), 400)
    assert "not [chunks, 3, " in error["message"]
    assert str(tmp_path) not in error["message"]
    other = answer(http, **body, method="coinrag")  # whose options these are not
    assert other["coinkv"]["method"] == "coinrag"


def test_more_than_the_index_holds_is_all_there_is(http):
    body = {"model": QUESTIONS, "messages": QUESTION, "max_tokens": 4}
    least, most = (
        ask(http, **body, k_chunks=chunks, k_nuggets=nuggets).json()["coinkv"]["len_tokens"]
        for chunks, nuggets in ((1, 1), (9_999, 10_000))
    )
    assert least < most


def test_an_embedder_does_not_chat(http):
    error = error_of(ask(http, model="text-embedding-3-small"), 400)
    assert error["param"] == "model"
    assert "/v1/embeddings" in error["message"]


def test_a_request_that_takes_longer_than_it_may_fails(http):
    reply = ask(http, max_tokens=MOST_TOKENS, n=8, deadline_seconds=1)
    assert error_of(reply, 504)["type"] == "timeout_error"


def test_a_stream_is_for_nobody_to_keep_or_to_hold_back(http):
    headers = ask(http, stream=True).headers
    assert headers["content-type"].startswith("text/event-stream")
    assert headers["cache-control"] == "no-store"
    assert headers["x-accel-buffering"] == "no"


def test_the_first_piece_of_a_stream_comes_long_before_the_last(http):
    body = {"model": CHAT, "messages": HELLO, "max_tokens": 400, "stream": True}
    with http.stream("POST", "/v1/chat/completions", json=body) as reply:
        arrivals = list(reply.iter_raw())
    assert len(arrivals) > 40


@contextlib.contextmanager
def connection(server: Running, body: dict[str, Any]):
    """A bare connection on which a chat was asked for."""
    host, port = server.url.removeprefix("http://").split(":")
    sent = json.dumps({"model": CHAT, "messages": HELLO, **body}).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}:{port}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(sent)}\r\n\r\n"
    )
    with socket.create_connection((host, int(port))) as connected:
        connected.sendall(head.encode() + sent)
        yield connected


def test_a_client_that_leaves_in_a_stream_frees_its_slot(chat_running, outcomes):
    with connection(chat_running, {"stream": True, "max_tokens": MOST_TOKENS}) as connected:
        until(connected, b'"content":"')
    wait_until(lambda: "cancelled" in outcomes)
    assert not chat_running.service.scheduler.load().busy


def test_a_client_that_leaves_before_its_answer_frees_its_slot(
    chat_running,
    outcomes,
):
    with connection(chat_running, {"max_tokens": MOST_TOKENS}):
        wait_until(lambda: chat_running.service.scheduler.load().decoding == 1)
    wait_until(lambda: "cancelled" in outcomes)
    assert not chat_running.service.scheduler.load().busy


def test_a_client_that_breaks_the_connection_frees_all_its_choices(
    chat_running,
    outcomes,
):
    body = {"stream": True, "max_tokens": MOST_TOKENS, "n": 4}
    with connection(chat_running, body) as connected:
        connected.recv(100)
        linger = (1).to_bytes(4, "little") + (0).to_bytes(4, "little")
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)  # a reset, no farewell
    wait_until(lambda: "cancelled" in outcomes)
