"""Answering with an adapter: the index's KV as it is (live), or chunks encoded with it (all)."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from coinkv.errors import InputError, ModelNotFoundError
from coinkv.methods.registry import METHODS
from coinkv.model.adapter import CARD
from coinkv.model.decode import Sampling
from coinkv.rag.ask import CoinRAG as Asker
from coinkv.rag.build import build
from coinkv.rag.index import Index
from coinkv.rag.verify import verify
from composing import difference
from small_corpus import QUESTIONS, contents_of
from tiny_adapters import save_tiny_adapter
from tiny_models import SUPPORTED, save_tiny_model


@pytest.fixture(scope="module")
def adapter(model_folder, tmp_path_factory):
    return save_tiny_adapter(model_folder, tmp_path_factory.mktemp("adapter") / "tuned")


@pytest.fixture
def opened(index_folder, backbone):
    return Index.open(index_folder, model=backbone)


@pytest.fixture(scope="module")
def tuned(model_folder, adapter):
    """The model with the adapter, as PEFT itself runs it."""
    plain = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    return PeftModel.from_pretrained(plain, adapter).eval()


def first_logits(index, method="coinrag", question=QUESTIONS[0], **options):
    asker = Asker(index, method=method, **options)
    return asker.first_token(question, answer_tokens=4).logits


def full_prefill(model, index, question=QUESTIONS[0], **options):
    """What a model makes of the ids that standard_rag reads."""
    first = Asker(index, method="standard_rag", **options).first_token(question, answer_tokens=4)
    ids = [*first.context.live.token_ids, *first.suffix_ids]
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0, -1:].float()


def card(folder, tmp_path, index, scope):
    """A copy of the adapter with a card."""
    copied = shutil.copytree(folder, tmp_path / "carded")
    facts = {"base_fingerprint": index.backbone.fingerprint, "scope": scope}
    (copied / CARD).write_text(json.dumps(facts))
    return copied


@pytest.mark.parametrize("scope", ["live", "all"])
def test_standard_rag_is_full_prefill_with_the_adapter_in_either_scope(
    opened, adapter, tuned, scope
):
    logits = first_logits(opened, "standard_rag", adapter=adapter, adapter_scope=scope)
    assert difference(logits, full_prefill(tuned, opened)) < 1e-5
    assert difference(first_logits(opened, "standard_rag"), logits) > 1e-2


def test_one_cached_chunk_encoded_with_the_adapter_is_full_prefill_within_16_bit(
    opened, adapter, tuned
):
    reference = full_prefill(tuned, opened, k_chunks=1)
    gaps = [
        difference(
            first_logits(opened, "standard_cag", k_chunks=1, adapter=adapter, adapter_scope=scope),
            reference,
        )
        for scope in ("all", "live")
    ]
    assert gaps[0] < 4e-3 < 1e-2 < gaps[1]


def test_the_live_scope_takes_the_indexs_kv_as_it_is(opened, index_folder, adapter):
    before = contents_of(index_folder / "blocks")
    asker = Asker(opened, method="standard_cag", adapter=adapter, adapter_scope="live")
    first = asker.first_token(QUESTIONS[0], answer_tokens=4)
    plain = Asker(opened, method="standard_cag").first_token(QUESTIONS[0], answer_tokens=4)
    assert asker.bench.blocks is opened.bench.blocks
    assert first.context.counts.missing == 0
    assert contents_of(index_folder / "blocks") == before
    length = plain.context_tokens
    for name in ("keys", "values"):
        with_it, without = (
            getattr(c.cache.block(0, length), name) for c in (first.context, plain.context)
        )
        assert torch.equal(with_it, without)
    assert difference(first.logits, plain.logits) > 1e-2


def test_the_scope_of_all_makes_blocks_of_its_own_and_leaves_the_others(
    opened, index_folder, adapter
):
    before = contents_of(index_folder / "blocks")
    options = {"method": "standard_cag", "adapter": adapter, "adapter_scope": "all"}
    asker = Asker(opened, **options, k_chunks=3, sampling=Sampling(4))
    answer, again = asker.ask(QUESTIONS[0]), asker.ask(QUESTIONS[0])
    after = contents_of(index_folder / "blocks")
    assert (answer.blocks_missing, again.blocks_missing) == (3, 0)
    assert answer.text == again.text
    assert len(after) == len(before) + 3
    assert after.items() >= before.items()
    assert asker.bench.blocks.backbone.fingerprint != opened.backbone.fingerprint
    prefix = asker.bench.blocks.prefix
    assert not torch.equal(prefix.values, opened.bench.blocks.prefix.values)


def test_blocks_of_an_adapter_are_unneeded_and_go_with_the_next_build(
    village, opened, index_folder, adapter, options, backbone
):
    before = contents_of(index_folder / "blocks").keys()
    wanted = first_logits(opened, "coinrag", adapter=adapter, adapter_scope="all")
    assert contents_of(index_folder / "blocks").keys() > before
    report = verify(index_folder)
    assert report.clean
    assert report.unneeded > 0
    build(village, index_folder, options)
    assert verify(index_folder).unneeded == 0
    again = Index.open(index_folder, model=backbone)
    assert torch.equal(first_logits(again, "coinrag", adapter=adapter, adapter_scope="all"), wanted)


@pytest.mark.parametrize("on_the_card", ["live", "all"])
@pytest.mark.parametrize("given", [None, "live", "all"])
def test_the_scope_is_the_one_given_else_the_cards(opened, adapter, tmp_path, on_the_card, given):
    carded = card(adapter, tmp_path, opened, on_the_card)
    expected = given or on_the_card
    logits = first_logits(opened, adapter=carded, adapter_scope=given)
    assert torch.equal(logits, first_logits(opened, adapter=adapter, adapter_scope=expected))
    other = {"live": "all", "all": "live"}[expected]
    assert not torch.equal(logits, first_logits(opened, adapter=adapter, adapter_scope=other))


def test_without_a_card_the_scope_is_live(opened, adapter):
    live = first_logits(opened, adapter=adapter, adapter_scope="live")
    assert torch.equal(first_logits(opened, adapter=adapter), live)


def test_an_adapter_leaves_no_trace_in_answers_without_it(opened, adapter):
    before = {name: first_logits(opened, name) for name in METHODS}
    for scope in ("live", "all"):
        for name in METHODS:
            found = first_logits(opened, name, adapter=adapter, adapter_scope=scope)
            assert difference(found, before[name]) > 1e-3
    for name in METHODS:
        assert torch.equal(first_logits(opened, name), before[name])


def test_two_adapters_on_one_index_do_not_meet(opened, adapter, model_folder, tmp_path):
    second = save_tiny_adapter(model_folder, tmp_path / "second", seed=1)
    alone = [
        first_logits(opened, adapter=folder, adapter_scope="all") for folder in (adapter, second)
    ]
    askers = [Asker(opened, adapter=folder, adapter_scope="all") for folder in (adapter, second)]
    for _ in range(2):
        for asker, wanted in zip(askers, alone, strict=True):
            assert torch.equal(asker.first_token(QUESTIONS[0], answer_tokens=4).logits, wanted)
    assert difference(*alone) > 1e-2


def test_a_scope_that_does_not_exist_is_refused(opened, adapter):
    with pytest.raises(InputError, match="use 'live' or 'all'"):
        Asker(opened, adapter=adapter, adapter_scope="suffix")


def test_an_adapter_that_is_not_there_or_not_for_this_model_is_refused(opened, adapter, tmp_path):
    with pytest.raises(ModelNotFoundError, match="no such adapter folder"):
        Asker(opened, adapter=tmp_path / "nowhere")
    other = save_tiny_model(tmp_path / "other", {**SUPPORTED["llama"], "hidden_size": 32})
    with pytest.raises(InputError, match="another shape"):
        Asker(opened, adapter=save_tiny_adapter(other, tmp_path / "for-another"))
    carded = card(adapter, tmp_path, opened, "all")
    facts = {"base_fingerprint": "0" * 64, "scope": "all"}
    (carded / CARD).write_text(json.dumps(facts))
    with pytest.raises(InputError, match="was trained on the backbone 0000"):
        Asker(opened, adapter=carded)
