"""Errors: OpenAI's format and the right status, whatever is sent."""

from __future__ import annotations

import json

import pytest
from chatting import CHAT, QUESTION, error_of

from coinkv.errors import (
    BusyError,
    CoinKVError,
    CorruptBlockError,
    DeadlineError,
    DocumentError,
    DocumentNotFoundError,
    EndpointError,
    IndexNotFoundError,
    InputError,
    JobNotFoundError,
    ModelNotFoundError,
    NotReadyError,
    StorageError,
)
from coinkv.serve.api.errors import failure_of

pytest_plugins = ("chat_fixtures",)

ROUTES = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings")
JSON = {"content-type": "application/json"}
DEEP = b"[" * 10_000 + b"]" * 10_000
MALFORMED = {
    "nothing": b"",
    "truncated": b'{"model": "a", "messages": [',
    "a list": b"[1]",
    "null": b"null",
    "a text": b'"model"',
    "no JSON": b"model=a",
    "no UTF-8": b'{"model": "\xff\xfe"}',
    "UTF-16": '{"model": "a"}'.encode("utf-16"),
    "overlong UTF-8": b'{"model": "\xc0\xaf"}',
    "a lone surrogate": b'{"model": "\\ud800"}',
    "a reversed pair": b'{"model": "\\udc00\\ud800"}',
    "NaN": b'{"model": "a", "temperature": NaN}',
    "infinity": b'{"model": "a", "temperature": -Infinity}',
    "endless nesting": DEEP,
    "nesting in a field": b'{"model": "a", "metadata": ' + DEEP + b"}",
    "a huge number": b'{"model": "a", "seed": ' + b"9" * 5000 + b"}",
    "a trailing comma": b'{"model": "a",}',
    "two bodies": b"{}{}",
    "a byte order mark": b"\xef\xbb\xbf{}",
}


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED)
def test_a_body_that_is_no_json_object_is_refused(http, path, body):
    error = error_of(http.post(path, content=body, headers=JSON), 400)
    assert error["type"] == "invalid_request_error"
    assert len(error["message"]) < 300


@pytest.mark.parametrize(
    "kind", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "json"]
)
def test_a_body_that_is_not_said_to_be_json_is_refused(http, kind):
    body = json.dumps({"model": CHAT, "messages": QUESTION}).encode()
    headers = {} if kind is None else {"content-type": kind}
    error = error_of(http.post(ROUTES[0], content=body, headers=headers), 415)
    assert "application/json" in error["message"]


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "application/vnd.api+json"])
def test_other_names_of_json_are_understood(http, kind):
    body = json.dumps({"model": CHAT, "messages": QUESTION, "max_tokens": 1}).encode()
    assert http.post(ROUTES[0], content=body, headers={"content-type": kind}).status_code == 200


CHAT_FAULTS = [
    ({"nonsense": 1}, "nonsense", "no such field"),
    ({"model": None}, "model", "string"),
    ({"model": ""}, "model", "at least 1"),
    ({"messages": []}, "messages", "at least 1"),
    ({"messages": {}}, "messages", "list"),
    ({"messages": ["hi"]}, "messages[0]", ""),
    ({"messages": [{"role": "user"}]}, "messages[0].content", "missing"),
    ({"messages": [{"role": "tool", "content": ""}]}, "messages[0].role", "'user'"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "string"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content", "string"),
    ({"messages": [{"role": "user", "content": "", "x": 1}]}, "messages[0].x", "no such field"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        "messages[0].content[0].type",
        "'text'",
    ),
    ({"temperature": 2.1}, "temperature", "less than or equal to 2"),
    ({"temperature": -1}, "temperature", ""),
    ({"temperature": "0"}, "temperature", "number"),
    ({"temperature": True}, "temperature", "number"),
    ({"top_p": 0}, "top_p", "greater than 0"),
    ({"top_p": 1.01}, "top_p", ""),
    ({"max_tokens": 0}, "max_tokens", ""),
    ({"max_tokens": 1.5}, "max_tokens", "integer"),
    ({"max_tokens": 10**30}, "max_tokens", ""),
    ({"n": 0}, "n", ""),
    ({"n": 9}, "n", "8"),
    ({"stop": [""]}, "stop[0]", ""),
    ({"stop": ["a"] * 17}, "stop", "16"),
    ({"stop": 5}, "stop", ""),
    ({"seed": 2**63}, "seed", ""),
    ({"stream": "yes"}, "stream", "boolean"),
    ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage", "boolean"),
    ({"top_logprobs": 21, "logprobs": True}, "top_logprobs", "20"),
    ({"deadline_seconds": 0}, "deadline_seconds", ""),
    ({"reuse": "some"}, "reuse", "'all'"),
    ({"tools": [{"type": "function"}]}, "tools", "cannot honour"),
    ({"tool_choice": "auto"}, "tool_choice", "cannot honour"),
    ({"functions": [{}]}, "functions", "cannot honour"),
    ({"function_call": "auto"}, "function_call", "cannot honour"),
    ({"response_format": {"type": "json_object"}}, "response_format.type", "'text'"),
    ({"logit_bias": {"5": 1}}, "logit_bias", "cannot honour"),
    ({"presence_penalty": 0.1}, "presence_penalty", "cannot honour"),
    ({"frequency_penalty": -1}, "frequency_penalty", "cannot honour"),
    ({"modalities": ["text", "audio"]}, "modalities[1]", ""),
    ({"audio": {"voice": "a"}}, "audio", "cannot honour"),
    ({"web_search_options": {}}, "web_search_options", "cannot honour"),
]


@pytest.mark.parametrize(("wrong", "param", "says"), CHAT_FAULTS, ids=lambda each: str(each)[:40])
def test_a_field_that_cannot_be_used_is_named(http, wrong, param, says):
    body = {"model": CHAT, "messages": QUESTION, **wrong}
    error = error_of(http.post(ROUTES[0], content=json.dumps(body), headers=JSON), 400)
    assert error["param"] == param
    assert says in error["message"]
    assert "\n" not in error["message"]


HARMLESS = {
    "user": "someone",
    "metadata": {"a": "b"},
    "store": False,
    "service_tier": "auto",
    "parallel_tool_calls": True,
    "stream_options": {"include_usage": True},
    "safety_identifier": "x",
    "prompt_cache_key": "y",
    "tools": [],
    "tool_choice": "none",
    "response_format": {"type": "text"},
    "logit_bias": {},
    "presence_penalty": 0,
    "frequency_penalty": 0.0,
    "modalities": ["text"],
    "temperature": None,
    "top_p": None,
    "stop": None,
    "n": None,
    "seed": None,
    "max_tokens": None,
    "logprobs": False,
}


def test_fields_that_change_nothing_are_taken(http):
    for field, value in HARMLESS.items():
        body = {"model": CHAT, "messages": QUESTION, "max_tokens": 1, field: value}
        reply = http.post(ROUTES[0], json=body)
        assert reply.status_code == 200, (field, reply.text)


def test_a_missing_field_is_named(http):
    assert error_of(http.post(ROUTES[0], json={"messages": QUESTION}), 400)["param"] == "model"
    assert error_of(http.post(ROUTES[0], json={"model": CHAT}), 400)["param"] == "messages"
    assert error_of(http.post(ROUTES[1], json={"model": CHAT}), 400)["param"] == "prompt"
    assert error_of(http.post(ROUTES[2], json={"model": CHAT}), 400)["param"] == "input"


def test_a_long_wrong_name_is_not_sent_back_whole(http):
    body = {"model": CHAT, "messages": QUESTION, "x" * 100_000: 1}
    assert len(http.post(ROUTES[0], json=body).text) < 4000


def test_a_model_that_does_not_exist_is_not_found(http):
    for path, field in zip(ROUTES, ("messages", "prompt", "input"), strict=True):
        given = QUESTION if field == "messages" else "a"
        error = error_of(http.post(path, json={"model": "gpt-9", field: given}), 404)
        assert (error["type"], error["code"]) == ("not_found_error", "model_not_found")


def test_a_path_that_leads_nowhere_is_not_found(http):
    for path in ("/v1/nothing", "/v1", "/v1/chat/completions/", "/v1/..%2f..%2fetc/passwd"):
        assert error_of(http.get(path), 404)["type"] == "not_found_error"


def test_a_verb_that_a_path_does_not_have_is_refused_with_those_it_has(http):
    for verb in ("GET", "PUT", "DELETE", "PATCH"):
        reply = http.request(verb, ROUTES[0])
        error_of(reply, 405)
        assert reply.headers["allow"] == "POST"
    error_of(http.post("/v1/models"), 405)


def test_every_error_carries_the_requests_id(http):
    reply = http.post(ROUTES[0], json={}, headers={"x-request-id": "trace-7"})
    error_of(reply, 400)
    assert reply.headers["x-request-id"] == "trace-7"


STATUSES = [
    (InputError("no"), 400, "invalid_request_error"),
    (DocumentError("no"), 400, "invalid_request_error"),
    (ModelNotFoundError("no"), 404, "not_found_error"),
    (IndexNotFoundError("no"), 404, "not_found_error"),
    (DocumentNotFoundError("no"), 404, "not_found_error"),
    (JobNotFoundError("no"), 404, "not_found_error"),
    (BusyError("full", retry_after_seconds=7), 429, "rate_limit_error"),
    (NotReadyError("starting"), 503, "server_error"),
    (DeadlineError("late"), 504, "timeout_error"),
    (StorageError("full"), 507, "server_error"),
    (EndpointError("no"), 500, "server_error"),
    (CorruptBlockError("no"), 500, "server_error"),
    (CoinKVError("no"), 500, "server_error"),
]


@pytest.mark.parametrize(("error", "status", "kind"), STATUSES, ids=lambda each: str(each))
def test_each_kind_of_error_has_a_status(http, chat_running, monkeypatch, error, status, kind):
    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(chat_running.service.scheduler, "submit", fails)
    reply = http.post(ROUTES[0], json={"model": CHAT, "messages": QUESTION})
    assert error_of(reply, status)["type"] == kind
    if status == 429:
        assert reply.headers["retry-after"] == "7"
    assert ("retry-after" in reply.headers) == (status in (429, 503))


def test_an_error_that_nobody_expected_is_a_500_that_says_nothing(http, chat_running, monkeypatch):
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(chat_running.service.models, "find", fails)
    error = error_of(http.post(ROUTES[0], json={"model": CHAT, "messages": QUESTION}), 500)
    assert error["type"] == "server_error"
    assert "secret" not in error["message"]


def test_the_field_is_named_only_where_a_field_is_meant():
    assert failure_of(InputError("no", where="max_tokens")).param == "max_tokens"
    assert failure_of(InputError("no", where="/some/folder")).param is None
