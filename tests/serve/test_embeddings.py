"""Embeddings: the embedder's own vectors, as numbers or packed."""

from __future__ import annotations

import base64
from typing import Any

import httpx
import numpy as np
import pytest
from chatting import CHAT, error_of

from coinkv.config import DEFAULT_EMBEDDER
from coinkv.serve.api.schemas.embeddings import MOST_TEXTS, EmbeddingList

pytest_plugins = ("chat_fixtures",)

TEXTS = ["The mill grinds rye.", "橋は一八四三年に建てられた。", "a"]


def ask(http: httpx.Client, **body: Any) -> httpx.Response:
    given = {"model": DEFAULT_EMBEDDER, "input": TEXTS, **body}
    return http.post("/v1/embeddings", json=given)


def test_vectors_are_the_embedders_in_the_order_of_the_texts(http, chat_running):
    reply = ask(http).json()
    EmbeddingList.model_validate(reply)
    vectors = np.array([each["embedding"] for each in reply["data"]], np.float32)
    expected = chat_running.service.models.embed(TEXTS)
    np.testing.assert_allclose(vectors, expected, atol=1e-6)
    assert [each["index"] for each in reply["data"]] == [0, 1, 2]
    tokenize = chat_running.service.backbone.tokenize
    assert reply["usage"]["prompt_tokens"] == sum(len(tokenize(text).ids) for text in TEXTS)


def test_one_text_is_a_list_of_one(http):
    single = ask(http, input=TEXTS[0]).json()
    assert len(single["data"]) == 1
    np.testing.assert_allclose(
        single["data"][0]["embedding"], ask(http).json()["data"][0]["embedding"], atol=1e-6
    )


def test_packed_vectors_are_little_endian_floats(http):
    packed = ask(http, encoding_format="base64").json()
    EmbeddingList.model_validate(packed)
    plain = ask(http, encoding_format="float").json()
    for one, other in zip(packed["data"], plain["data"], strict=True):
        vector = np.frombuffer(base64.b64decode(one["embedding"]), "<f4")
        np.testing.assert_allclose(vector, other["embedding"], atol=1e-6)


def test_the_models_own_dimensions_may_be_named_and_no_others(http):
    assert ask(http, dimensions=384).status_code == 200
    error = error_of(ask(http, dimensions=256), 400)
    assert error["param"] == "dimensions"
    assert "384" in error["message"]


@pytest.mark.parametrize("ids", [[1, 2, 3], [[1, 2], [3]]])
def test_token_ids_are_refused_with_the_way_out(http, ids):
    error = error_of(ask(http, input=ids), 400)
    assert error["param"] == "input"
    assert "check_embedding_ctx_length=False" in error["message"]


@pytest.mark.parametrize(
    "wrong", ["", [], [""], ["a", 1], ["a"] * (MOST_TEXTS + 1), None, 5, {"a": 1}]
)
def test_what_is_no_text_is_refused(http, wrong):
    assert error_of(ask(http, input=wrong), 400)["param"].startswith("input")


def test_a_model_that_generates_embeds_nothing(http):
    error = error_of(ask(http, model=CHAT), 400)
    assert error["param"] == "model"
    assert DEFAULT_EMBEDDER in error["message"]
