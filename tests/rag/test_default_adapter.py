"""The adapter that ships is used where it is asked for, and leaves everything else alone."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch

from coinkv.errors import InputError, ModelNotFoundError
from coinkv.methods.registry import METHODS
from coinkv.model import adapter as model_adapter
from coinkv.model.decode import Sampling
from coinkv.model.load import load
from coinkv.model.shipped import users_adapters
from coinkv.rag.adapters import load_adapter
from coinkv.rag.answer import AdapterUsed
from coinkv.rag.ask import CoinRAG as Asker
from coinkv.rag.index import Index
from small_corpus import QUESTIONS, contents_of
from tiny_adapters import save_tiny_adapter, write_card

NAME = "tiny-nuggets"


@pytest.fixture(scope="module")
def saved(model_folder, tmp_path_factory):
    return save_tiny_adapter(model_folder, tmp_path_factory.mktemp("adapter") / "saved")


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """The folder of shipped adapters, empty."""
    monkeypatch.setattr("coinkv.model.shipped.SHIPPED", tmp_path / "shipped")
    return tmp_path / "shipped"


@pytest.fixture
def default(shipped, saved, backbone):
    """The adapter that ships for the backbone of these tests."""
    return write_card(shutil.copytree(saved, shipped / NAME), backbone, default=True)


@pytest.fixture
def opened(index_folder, backbone):
    return Index.open(index_folder, model=backbone)


def first_logits(index, method="coinrag", question=QUESTIONS[0], **options):
    asker = Asker(index, method=method, **options)
    return asker.first_token(question, answer_tokens=4).logits


def test_the_default_answers_as_the_same_adapter_by_its_folder(opened, default, saved):
    named = first_logits(opened, adapter=saved, adapter_scope="live")
    assert torch.equal(first_logits(opened, adapter="default"), named)
    assert torch.equal(first_logits(opened, adapter=NAME), named)
    assert not torch.equal(first_logits(opened), named)


def test_where_none_ships_the_default_is_none(opened, shipped):
    asker = Asker(opened, adapter="default")
    assert asker.adapter is None
    assert asker.bench is opened.bench
    assert torch.equal(first_logits(opened, adapter="default"), first_logits(opened))


def test_nothing_is_used_that_was_not_asked_for(opened, default):
    asker = Asker(opened, sampling=Sampling(2))
    assert asker.bench.backbone is opened.backbone
    assert asker.ask(QUESTIONS[0]).adapter is None


def test_an_answer_tells_its_adapter_by_name_and_digest(opened, default):
    asker = Asker(opened, adapter="default", sampling=Sampling(2))
    answer = asker.ask(QUESTIONS[0])
    assert answer.adapter == AdapterUsed(NAME, asker.bench.backbone.adapter)
    assert answer.to_dict()["adapter"] == {"name": NAME, "digest": answer.adapter.digest}
    assert len(answer.adapter.digest) == 64


def test_the_default_never_takes_part_in_encoding_chunks(opened, default, index_folder):
    before = contents_of(index_folder / "blocks")
    for method in ("coinrag", "standard_cag"):
        asker = Asker(opened, method=method, adapter="default", adapter_scope="live")
        asker.first_token(QUESTIONS[0], answer_tokens=4)
        assert asker.bench.blocks is opened.bench.blocks
    assert contents_of(index_folder / "blocks") == before
    with pytest.raises(InputError, match="live only"):
        Asker(opened, adapter="default", adapter_scope="all")


def test_blocks_that_are_missing_are_encoded_without_the_default(opened, default, index_folder):
    shutil.rmtree(index_folder / "blocks")
    (index_folder / "blocks").mkdir()
    with_it = Asker(opened, adapter="default", sampling=Sampling(2)).ask(QUESTIONS[0])
    assert with_it.blocks_missing > 0
    plain = Asker(opened, sampling=Sampling(2)).ask(QUESTIONS[0])
    assert plain.blocks_missing == 0


def test_the_default_is_for_every_method(opened, default):
    for method in METHODS:
        assert Asker(opened, method=method, adapter="default").adapter is not None


def test_an_adapter_is_loaded_once_for_many_askers(opened, default, monkeypatch):
    loaded = load_adapter(opened.backbone, "default")
    expected = first_logits(opened, adapter="default")
    monkeypatch.setattr("coinkv.model.adapter.read_lora", None)  # would fail if it were read
    for _ in range(2):
        asker = Asker(opened, adapter=loaded)
        assert asker.bench.backbone is loaded.view
        assert torch.equal(asker.first_token(QUESTIONS[0], answer_tokens=4).logits, expected)


def test_a_loaded_adapter_of_scope_all_encodes_chunks(opened, saved):
    loaded = load_adapter(opened.backbone, saved, "all")
    by_folder = first_logits(opened, adapter=saved, adapter_scope="all")
    assert torch.equal(first_logits(opened, adapter=loaded), by_folder)


def test_an_adapter_loaded_for_another_copy_of_the_model_is_refused(opened, saved, model_folder):
    other = load(str(model_folder), device="cpu")
    with pytest.raises(InputError, match="for another model"):
        Asker(opened, adapter=load_adapter(other, saved))


def test_a_scope_wants_an_adapter_to_load(opened, saved):
    loaded = load_adapter(opened.backbone, saved)
    for adapter in (None, loaded):
        with pytest.raises(InputError, match="adapter_scope is given without"):
            Asker(opened, adapter=adapter, adapter_scope="live")


def test_an_unknown_name_is_refused_with_the_names_there_are(opened, default):
    with pytest.raises(ModelNotFoundError, match=f"tuned: .* one of {NAME}"):
        Asker(opened, adapter="tuned")


def test_a_named_adapter_of_another_base_is_refused(opened, shipped, saved, tiny_backbone):
    write_card(shutil.copytree(saved, shipped / "other"), tiny_backbone("qwen2"), default=True)
    assert Asker(opened, adapter="default").adapter is None
    with pytest.raises(InputError, match="was trained on the backbone"):
        Asker(opened, adapter="other")


def test_every_method_without_adapter_is_bit_for_bit_what_it_was_before_one_was_used(
    opened, default
):
    before = {name: first_logits(opened, name) for name in METHODS}
    for name in METHODS:
        Asker(opened, method=name, adapter="default", sampling=Sampling(3)).ask(QUESTIONS[0])
        assert torch.equal(first_logits(opened, name), before[name])


@pytest.mark.parametrize("method", ["standard_rag", "coinrag"])
def test_two_threads_one_with_and_one_without_each_get_their_own_bits(opened, default, method):
    sampling = Sampling(4)
    askers = [
        Asker(opened, method=method, adapter=adapter, sampling=sampling)
        for adapter in (None, "default")
    ]
    alone = [answers(asker) for asker in askers]
    together = Barrier(2)

    def asked(asker):
        together.wait(30)
        return [answers(asker) for _ in range(5)]

    with ThreadPoolExecutor(2) as threads:
        both = list(threads.map(asked, askers))
    for rounds, expected in zip(both, alone, strict=True):
        for found in rounds:
            assert [text for _, text in found] == [text for _, text in expected]
            for (logits, _), (wanted, _) in zip(found, expected, strict=True):
                assert torch.equal(logits, wanted)
    assert not torch.equal(alone[0][0][0], alone[1][0][0])


def answers(asker):
    """Logits and text of two questions."""
    return [
        (asker.first_token(question, answer_tokens=4).logits, asker.ask(question).text)
        for question in QUESTIONS[:2]
    ]


def test_name_scope_and_check_are_those_of_one_reading_of_the_card(opened, default, monkeypatch):
    read = []
    monkeypatch.setattr(model_adapter, "read_card", lambda path: read.append(path))
    load_adapter(opened.backbone, NAME)
    assert len(read) == 1


def test_an_adapter_is_called_what_it_is_listed_as_else_what_its_card_calls_it(
    opened, saved, tmp_path, monkeypatch
):
    monkeypatch.setenv("COINKV_HOME", str(tmp_path / "home"))
    for folder, name in ((tmp_path / "run", "from-a-run"), (users_adapters() / "mine", "mine")):
        write_card(shutil.copytree(saved, folder), opened.backbone, name="from-a-run")
        assert load_adapter(opened.backbone, folder).used.name == name
    assert load_adapter(opened.backbone, "mine").used.name == "mine"


@pytest.mark.parametrize("name", ["a\x1b[31m\nb", "\u202e" * 10_000])
def test_a_name_on_a_card_is_told_in_one_short_line(opened, saved, tmp_path, name):
    folder = write_card(shutil.copytree(saved, tmp_path / "a"), opened.backbone, name=name)
    told = load_adapter(opened.backbone, folder).used.name
    assert told.isprintable()
    assert len(told) < 1000
