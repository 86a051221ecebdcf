"""What the server says of itself: models, methods, state, and the OpenAPI document."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from chatting import ALIASES, CHAT, CONTEXT, MOST_TOKENS, QUESTION, QUESTIONS, error_of
from serving import settings_for

import coinkv
from coinkv.config import DEFAULT_EMBEDDER
from coinkv.methods.registry import METHODS
from coinkv.serve.api.schemas.listings import MethodList, ModelList, Status
from coinkv.serve.app import create_app
from coinkv.serve.service import Service

pytest_plugins = ("chat_fixtures",)


def test_models_are_the_backbone_the_indexes_the_embedder_and_other_names(http):
    listed = ModelList.model_validate(http.get("/v1/models").json())
    kinds = {model.id: model.kind for model in listed.data}
    assert kinds[CHAT] == "backbone"
    assert kinds[QUESTIONS] == "coinrag"
    assert kinds[DEFAULT_EMBEDDER] == "embedder"
    assert set(ALIASES) <= set(kinds)
    assert {model.index for model in listed.data} == {None, "index"}


@pytest.mark.parametrize("name", [CHAT, QUESTIONS, DEFAULT_EMBEDDER, "gpt-4o-mini"])
def test_a_model_is_found_by_its_name_slashes_and_all(http, name):
    assert http.get(f"/v1/models/{name}").json()["id"] == name


@pytest.mark.parametrize("name", ["gpt-9", "coinrag/none", "", "a%2F..%2Fb", "%E6%A9%8B"])
def test_another_name_is_not_found(http, name):
    error = error_of(http.get(f"/v1/models/{name}"), 404)
    assert (error["type"], error["code"]) == ("not_found_error", "model_not_found")


def test_methods_are_listed_with_a_line_each_and_the_default_marked(http):
    listed = MethodList.model_validate(http.get("/v1/methods").json())
    assert [method.id for method in listed.data][: len(METHODS)] == list(METHODS)
    assert [method.id for method in listed.data if method.default] == ["coinrag"]
    assert all(10 < len(method.note) < 300 and "\n" not in method.note for method in listed.data)


def test_the_status_tells_model_load_and_limits(http):
    status = Status.model_validate(http.get("/v1/status").json())
    assert (status.model, status.context_length) == (CHAT, CONTEXT)
    assert status.version == coinkv.__version__
    assert status.ready
    assert not status.needs_key
    assert status.load is not None
    assert status.load.decoding == 0
    assert status.limits.most_answer_tokens == MOST_TOKENS


def test_every_route_declares_the_errors_it_may_answer_with(http):
    paths = http.get("/openapi.json").json()["paths"]
    routes = [
        (path, verb, operation)
        for path, verbs in paths.items()
        for verb, operation in verbs.items()
        if path in ("/v1/chat/completions", "/v1/completions", "/v1/embeddings")
        or path.startswith(("/v1/models", "/v1/methods", "/v1/status"))
    ]
    assert len(routes) == 7
    for path, _, operation in routes:
        assert {"200", "400", "401", "404", "413", "429", "500", "503"} <= set(
            operation["responses"]
        ), path
        assert "422" not in operation["responses"], path
        assert operation["security"] == [{}, {"HTTPBearer": []}], path  # there are no keys
        error = operation["responses"]["400"]["content"]["application/json"]["schema"]
        assert error == {"$ref": "#/components/schemas/ErrorReply"}


def test_while_the_model_is_loaded_the_status_is_told_and_everything_else_waits(tmp_path):
    app = create_app(Service(settings_for(tmp_path, model="some/model")))

    async def play() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return [
                await client.get("/v1/status"),
                await client.get("/v1/models"),
                await client.post(
                    "/v1/chat/completions", json={"model": "a", "messages": QUESTION}
                ),
            ]

    told, *waiting = asyncio.run(play())
    status = Status.model_validate(told.json())
    assert (status.ready, status.context_length, status.load) == (False, None, None)
    assert status.model == "some/model"
    for reply in waiting:
        assert error_of(reply, 503)["code"] == "not_ready"
        assert int(reply.headers["retry-after"]) > 0
