"""The llm extractor against coinkv's own server: keys, a full queue, and a model that talks rot."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
from serving import Running, running, settings_for

from coinkv.config import DEFAULT_MODEL
from coinkv.corpus.extract.llm import LLMExtractor
from coinkv.corpus.extract.sentences import SentenceExtractor
from coinkv.errors import EndpointError
from coinkv.model.backbone import Backbone
from coinkv.model.chat import prompt_ids
from coinkv.model.load import load
from coinkv.model.threads import one_thread
from coinkv.rag.build import BuildOptions, build
from coinkv.serve.security.keys import Keys
from fixtures.chat_model import TEMPLATE
from small_corpus import CHUNK_TOKENS, DOCUMENTS
from tiny_models import save_tiny_model

PASSAGES = [DOCUMENTS["bridge.txt"], DOCUMENTS["fish.txt"], DOCUMENTS["mill.md"]]
SENTENCES = [SentenceExtractor().extract(passage) for passage in PASSAGES]


@pytest.fixture(scope="module")
def talker(tmp_path_factory: pytest.TempPathFactory) -> Backbone:
    """A random chat model with room for the instructions: what it says is gibberish."""
    options = {"model_type": "llama", "max_position_embeddings": 4096}
    folder = tmp_path_factory.mktemp("model") / "talker"
    with one_thread():
        return load(str(save_tiny_model(folder, options, chat_template=TEMPLATE)), device="cpu")


@pytest.fixture
def own_server(talker: Backbone, tmp_path: Path) -> Iterator[Running]:
    with running(settings_for(tmp_path), talker) as server:
        yield server


@pytest.fixture(autouse=True)
def _no_key_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def extractor(server: Running, tmp_path: Path, **options: object) -> LLMExtractor:
    given = {"max_tokens": 8, "backoff_seconds": 0.01, **options}
    return LLMExtractor(
        f"{server.url}/v1",
        DEFAULT_MODEL,
        cache_dir=tmp_path / "extractions",
        fallback=SentenceExtractor(),
        **given,  # type: ignore[arg-type]
    )


def test_a_build_whose_model_talks_rot_has_the_fallbacks_nuggets(
    own_server: Running, talker: Backbone, village: Path, tmp_path: Path
) -> None:
    plain = BuildOptions(model=talker, chunk_tokens=CHUNK_TOKENS)
    asked = dataclasses.replace(plain, extractor=extractor(own_server, tmp_path))
    report = build(village, tmp_path / "asked", asked)
    wanted = build(village, tmp_path / "plain", plain)
    counts = report.extractor_counts
    assert counts == {
        "requests": report.chunks, "retries": 0, "cached": 0, "malformed": report.chunks
    }  # fmt: skip
    assert report.nuggets == wanted.nuggets
    assert report.nuggets["exact"] > report.chunks


def test_the_instructions_are_computed_once(
    own_server: Running, talker: Backbone, tmp_path: Path
) -> None:
    chosen = extractor(own_server, tmp_path, concurrency=1)
    assert list(chosen.extract_all(PASSAGES)) == SENTENCES
    prompts = [
        prompt_ids(
            talker,
            [
                {"role": "system", "content": chosen._prompt},
                {"role": "user", "content": f"Passage:\n{passage}"},
            ],
        )
        for passage in PASSAGES
    ]
    shared = next(at for at, same in enumerate(zip(*prompts, strict=False)) if len(set(same)) > 1)
    assert shared > 500
    stats = own_server.service.models.store("default")
    assert stats["prompts"] == len(PASSAGES)
    # runs end where chunks end, so a little of what is shared may be computed again
    assert stats["reuse"]["exact"] >= (len(PASSAGES) - 1) * 0.9 * shared


def test_a_server_with_keys_answers_the_right_one_and_the_wrong_one_ends_the_run(
    talker: Backbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_for(tmp_path)
    _, secret = Keys(settings.data_dir).add("extractor")
    with running(settings, talker) as server:
        right = extractor(server, tmp_path, api_key=secret)
        assert list(right.extract_all(PASSAGES)) == SENTENCES
        for wrong in ("ck_wrong", None):
            with pytest.raises(EndpointError, match=r"401.*API key") as caught:
                list(extractor(server, tmp_path, api_key=wrong).extract_all(PASSAGES))
            assert secret not in str(caught.value)
        monkeypatch.setenv("OPENAI_API_KEY", secret)
        assert extractor(server, tmp_path).extract(PASSAGES[0]) == SENTENCES[0]


def test_a_server_that_is_full_is_asked_again_until_all_is_extracted(
    talker: Backbone, tmp_path: Path
) -> None:
    with running(settings_for(tmp_path, slots=1, prefills=1, queue=0), talker) as server:
        patient = extractor(server, tmp_path, concurrency=3, max_retries=50, max_tokens=64)
        assert list(patient.extract_all(PASSAGES)) == SENTENCES
        assert patient.counts["retries"] > 0
        assert patient.counts["requests"] == len(PASSAGES) + patient.counts["retries"]


def test_a_server_that_stays_full_ends_the_run_with_what_it_said(
    talker: Backbone, tmp_path: Path
) -> None:
    with running(settings_for(tmp_path, slots=1, prefills=1, queue=0), talker) as server:
        hasty = extractor(server, tmp_path, concurrency=3, max_retries=0, max_tokens=400)
        with pytest.raises(EndpointError, match="429"):
            list(hasty.extract_all(PASSAGES))


def test_a_model_that_is_not_there_ends_the_run(own_server: Running, tmp_path: Path) -> None:
    chosen = LLMExtractor(
        f"{own_server.url}/v1", "another", cache_dir=tmp_path, fallback=SentenceExtractor()
    )
    with pytest.raises(EndpointError, match=r"404.*model"):
        chosen.extract(PASSAGES[0])


def test_room_to_copy_the_passage_is_asked_for(own_server: Running, tmp_path: Path) -> None:
    chosen = extractor(own_server, tmp_path, max_tokens=None)
    assert chosen.extract(PASSAGES[0]) == SENTENCES[0]
    assert chosen.counts["malformed"] == 1
