"""A server answers questions over an index with the adapter it is set to, and nothing else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from chatting import CHAT, CONTEXT, QUESTION, QUESTIONS, TEMPLATE, events_of
from serving import running, settings_for

from coinkv.errors import InputError, ModelNotFoundError
from coinkv.model.decode import Sampling
from coinkv.model.load import load
from coinkv.model.threads import one_thread
from coinkv.rag.ask import CoinRAG
from coinkv.rag.build import BuildOptions, build
from coinkv.rag.index import Index
from coinkv.serve.api.schemas.listings import ModelList
from coinkv.serve.run import run_server
from coinkv.serve.service import Service
from command_line import coinkv  # noqa: F401 - a fixture
from small_corpus import CHUNK_TOKENS, contents_of, write_documents
from tiny_adapters import save_tiny_adapter, write_card
from tiny_models import save_tiny_model

NAME = "tiny-nuggets"
PROMPT = [{"role": "user", "content": "Marta counted 14 sheep."}]
TURNS = [
    {"role": "user", "content": "Who built the stone bridge?"},
    {"role": "assistant", "content": "Anna Holm built it."},
    {"role": "user", "content": "When did she build it, and what did it cost?"},
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """A tiny model that chats, an index, and the adapter that ships for the model."""
    folder = tmp_path_factory.mktemp("adapted")
    shape = {"model_type": "llama", "max_position_embeddings": CONTEXT}
    with one_thread(), pytest.MonkeyPatch.context() as patch:
        saved = save_tiny_model(folder / CHAT, shape, chat_template=TEMPLATE)
        backbone = replace(load(str(saved), device="cpu"), end_token_ids=frozenset())
        options = BuildOptions(model=backbone, chunk_tokens=CHUNK_TOKENS)
        build(write_documents(folder / "documents"), folder / "index", options)
        adapter = save_tiny_adapter(saved, folder / "shipped" / NAME)
        write_card(adapter, backbone, default=True)
        patch.setattr("coinkv.model.shipped.SHIPPED", folder / "shipped")
        yield SimpleNamespace(folder=folder, model=saved, backbone=backbone, adapter=adapter)


def settings(made: SimpleNamespace, name: str, **chosen: Any) -> Any:
    return settings_for(
        made.folder / name,
        model=str(made.model),
        indexes=(made.folder / "index",),
        answer_tokens=12,
        **chosen,
    )


@pytest.fixture(scope="module")
def with_it(made: SimpleNamespace) -> Iterator[httpx.Client]:
    """A server as it is by default."""
    with (
        running(settings(made, "with"), made.backbone) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def without(made: SimpleNamespace) -> Iterator[httpx.Client]:
    """A server that is told to use no adapter."""
    with (
        running(settings(made, "without", adapter=None), made.backbone) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        yield client


def reply(http: httpx.Client, **body: Any) -> Any:
    given = {"model": QUESTIONS, "messages": QUESTION, "max_tokens": 12, **body}
    answered = http.post("/v1/chat/completions", json=given)
    assert answered.status_code == 200, answered.text
    return answered


def text(http: httpx.Client, **body: Any) -> str:
    content: str = reply(http, **body).json()["choices"][0]["message"]["content"]
    return content


def librarys(made: SimpleNamespace, adapter: str | None, method: str) -> Any:
    index = Index.open(made.folder / "index", model=made.backbone)
    asker = CoinRAG(index, method=method, adapter=adapter)
    return asker.ask(QUESTION[0]["content"], sampling=Sampling(12, first_line=True))


@pytest.mark.parametrize("method", ["coinrag", "standard_rag"])
def test_questions_are_answered_with_the_default_adapter_whatever_the_method(
    made, with_it, without, method
):
    expected, plain = (librarys(made, adapter, method) for adapter in ("default", None))
    assert expected.text != plain.text
    assert text(with_it, method=method) == expected.text
    assert text(without, method=method) == plain.text


def test_a_reply_tells_the_adapter_by_name_and_digest(made, with_it, without):
    used = librarys(made, "default", "coinrag").adapter
    told = {"name": NAME, "digest": used.digest}
    assert reply(with_it).json()["coinkv"]["adapter"] == told
    assert events_of(reply(with_it, stream=True).text)[0]["coinkv"]["adapter"] == told
    assert reply(without).json()["coinkv"]["adapter"] is None


def test_the_list_of_models_tells_which_of_them_answer_with_it(made, with_it, without):
    used = librarys(made, "default", "coinrag").adapter
    told = {"name": NAME, "digest": used.digest}
    for http, expected in ((with_it, told), (without, None)):
        listed = ModelList.model_validate(http.get("/v1/models").json()).data
        assert {model.kind: model.adapter and model.adapter.model_dump() for model in listed} == {
            "backbone": None,
            "coinrag": expected,
            "embedder": None,
        }


def test_prompts_of_the_backbone_are_answered_without_it(with_it, without):
    body = {"model": CHAT, "messages": PROMPT, "logprobs": True, "top_logprobs": 3}
    choices = [reply(http, **body).json()["choices"] for http in (with_it, without)]
    assert choices[0] == choices[1]
    assert "adapter" not in reply(with_it, **body).json()["coinkv"]


def test_earlier_turns_are_condensed_without_it(with_it, without):
    asked = [
        reply(http, messages=TURNS, condense="model").json()["coinkv"]
        for http in (with_it, without)
    ]
    assert asked[0]["adapter"] is not None
    assert asked[0]["question"] == asked[1]["question"]


def test_questions_and_prompts_at_once_each_get_their_own(with_it):
    bodies = [
        {},
        {"model": CHAT, "messages": PROMPT},
        {"method": "standard_rag"},
        {"messages": [{"role": "user", "content": "What does a fishing licence cost?"}]},
    ] * 2
    expected = [text(with_it, **body) for body in bodies]
    with ThreadPoolExecutor(len(bodies)) as clients:
        found = list(clients.map(lambda body: text(with_it, **body), bodies))
    assert found == expected


def test_nothing_is_encoded_anew_for_it(made, with_it):
    before = contents_of(made.folder / "index" / "blocks")
    assert reply(with_it).json()["coinkv"]["blocks_missing"] == 0
    assert contents_of(made.folder / "index" / "blocks") == before


def test_its_files_are_read_once_not_for_every_question(with_it, monkeypatch):
    expected = text(with_it)
    monkeypatch.setattr("coinkv.model.adapter.read_lora", None)  # would fail if it were called
    assert text(with_it) == expected


def failure(made: SimpleNamespace, adapter: Path | str, tmp_path: Path) -> str:
    """Why a server with this adapter does not start."""

    async def start() -> None:
        chosen = settings_for(tmp_path, model=str(made.model), adapter=str(adapter))
        service = Service(chosen, made.backbone)
        service.start()
        try:
            await service.started()
        finally:
            await service.close()

    with pytest.raises(InputError) as refused:
        asyncio.run(start())
    return str(refused.value)


def test_a_server_does_not_start_with_an_adapter_of_another_base(made, tmp_path):
    other = save_tiny_adapter(made.model, tmp_path / "other")
    (other / "coinkv_adapter.json").write_text(
        json.dumps({"base_fingerprint": "f" * 64, "scope": "live"})
    )
    assert "was trained on the backbone ffff" in failure(made, other, tmp_path)


def test_a_server_does_not_start_with_an_adapter_that_wants_chunks_encoded_with_it(made, tmp_path):
    wide = save_tiny_adapter(made.model, tmp_path / "wide")
    write_card(wide, made.backbone, scope="all")
    assert "scope all" in failure(made, wide, tmp_path)


def test_an_unknown_adapter_is_refused_before_anybody_is_told_that_the_server_listens(
    made, tmp_path
):
    chosen = settings_for(tmp_path, model=str(made.model), adapter="tuned")
    with pytest.raises(ModelNotFoundError, match=f"tuned: .* one of {NAME}"):
        run_server(chosen, lambda url: pytest.fail("it listens"))


@pytest.mark.parametrize(
    ("typed", "environment", "expected"),
    [
        ((), None, "default"),
        ((), "none", None),
        ((), "mine", "mine"),
        (("--adapter", "other"), "mine", "other"),
        (("--no-adapter",), "mine", None),
        (("--no-adapter",), None, None),
    ],
)
def test_the_command_sets_what_the_environment_can_set(
    coinkv,  # noqa: F811
    monkeypatch,
    tmp_path,
    typed,
    environment,
    expected,
):
    if environment is not None:
        monkeypatch.setenv("COINKV_SERVE_ADAPTER", environment)
    seen = []
    monkeypatch.setattr("coinkv.serve.run.run_server", lambda given, _: seen.append(given.adapter))
    ran = coinkv("serve", "--data-dir", tmp_path, *typed)
    assert (ran.code, seen) == (0, [expected])


def test_an_adapter_and_none_are_refused_together(coinkv, tmp_path):  # noqa: F811
    ran = coinkv("serve", "--data-dir", tmp_path, "--adapter", "mine", "--no-adapter")
    assert ran.code == 2
    assert "both given" in ran.err
