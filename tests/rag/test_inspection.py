"""An inspection shows every token of the context once, where it is from and how it came about."""

from __future__ import annotations

import json
from itertools import groupby, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers

from byte_tokens import byte_level
from coinkv.errors import InputError
from coinkv.methods.cacheblend import CacheBlend
from coinkv.methods.coinrag import CoinRAG as CoinRAGMethod
from coinkv.methods.coinrag_cacheblend import CoinRAGCacheBlend
from coinkv.methods.epic import EPIC
from coinkv.methods.kvlink import KVLink
from coinkv.methods.registry import METHODS
from coinkv.model.decode import Sampling
from coinkv.rag.ask import CoinRAG
from coinkv.rag.build import BuildOptions
from coinkv.rag.index import Index
from coinkv.rag.inspection import _TokenText, inspect
from coinkv.repair.deviation import picked
from small_corpus import QUESTIONS, write_documents
from tiny_models import save_tiny_model

LAYERS = 3
SAMPLING = Sampling(6, first_line=True)
FESTIVAL = "Which emoji does the festival have?"


def inspected(index, question=QUESTIONS[0], **options):
    return inspect(CoinRAG(index, sampling=SAMPLING, **options), question)


def by_rank(runs):
    """Texts of a context's chunks, each from its first token in the context to its last."""
    found = {}
    for run in runs:
        if run.source == "chunk":
            found[run.chunk_rank] = found.get(run.chunk_rank, "") + run.text
    return found


def whole_text(index, content_hash):
    """A chunk as it is encoded: its title header and its text."""
    content = index.catalogue.content(content_hash)
    header = index.backbone.detokenize(content.token_ids[: content.header_tokens].tolist())
    return header + content.text


def hashes(index, question):
    return [
        c.content_hash
        for c in CoinRAG(index).first_token(question, answer_tokens=1).retrieval.chunks
    ]


@pytest.mark.parametrize("method", METHODS)
def test_the_answer_is_that_of_ask_and_the_runs_add_up_to_its_context(index, method):
    found = inspected(index, method=method)
    answer = CoinRAG(index, method=method, sampling=SAMPLING).ask(QUESTIONS[0])
    assert (found.answer.text, found.answer.evidence) == (answer.text, answer.evidence)
    assert sum(run.tokens for run in found.runs) == found.answer.len_tokens == answer.len_tokens
    assert sum(found.tokens.values()) == answer.len_tokens
    in_context = sum(run.tokens * run.layers_computed for run in found.runs)
    assert in_context == answer.layer_tokens - LAYERS * answer.suffix_tokens
    assert {run.layers for run in found.runs} == {LAYERS}


@pytest.mark.parametrize("method", METHODS)
def test_the_prompt_comes_first_and_every_run_names_its_source(index, method):
    found = inspected(index, method=method)
    prompt = "".join(run.text for run in found.runs if run.source == "prompt")
    assert prompt == index.backbone.text_tokenizer.decode(
        list(index.bench.prompt.prefix_ids), skip_special_tokens=False
    )
    assert prompt.startswith("Answer the question using only the given documents.")
    assert found.runs[0].source == "prompt"
    chunks = {run.chunk_rank: run for run in found.runs if run.source == "chunk"}
    assert set(chunks) <= set(range(5))
    names = hashes(index, QUESTIONS[0])
    for rank, run in chunks.items():
        place = index.catalogue.placements_of(names[rank])[0]
        assert (run.document, run.chunk) == (place.document_key, place.ordinal)
        assert run.title == index.catalogue.document(run.document).title
    for run in found.runs:
        if run.source != "chunk":
            assert (run.document, run.title, run.chunk, run.chunk_rank) == (None,) * 4


@pytest.mark.parametrize("method", ["standard_rag", "standard_cag", "turborag"])
def test_whole_chunks_are_shown_as_they_were_encoded_in_any_script(index, method):
    found = inspected(index, method=method, k_chunks=index.vectors.chunks)
    asker = CoinRAG(index, k_chunks=index.vectors.chunks)
    retrieved = asker.first_token(QUESTIONS[0], answer_tokens=1).retrieval.chunks
    texts = [whole_text(index, chunk.content_hash) for chunk in retrieved]
    assert by_rank(found.runs) == dict(enumerate(texts))
    assert "橋は一八四三年に建てられた。 The festival emoji is 🎏🐟." in "".join(texts)


def cut_within_characters(index, runs, names):
    """How many runs would be no whole characters if their tokens were decoded alone."""
    return sum(
        "\ufffd"
        in index.backbone.detokenize(
            index.catalogue.content(names[run.chunk_rank])
            .token_ids[run.start : run.start + run.tokens]
            .tolist()
        )
        for run in runs
        if run.source == "chunk"
    )


@pytest.mark.parametrize("ratio", [0.1, 0.3, 0.5, 0.7])
def test_characters_that_a_repair_cuts_in_two_stay_whole(index, ratio):
    asker = CoinRAG(index, method=CacheBlend(ratio, "random"), k_chunks=2, sampling=Sampling(1))
    names = [c.content_hash for c in asker.first_token(FESTIVAL, answer_tokens=1).retrieval.chunks]
    runs = inspect(asker, FESTIVAL).runs
    assert cut_within_characters(index, runs, names) > 3
    assert by_rank(runs) == {r: whole_text(index, name) for r, name in enumerate(names)}


def test_a_nugget_is_shown_as_the_evidence_quotes_it(index):
    for question in (*QUESTIONS, FESTIVAL):
        found = inspected(index, question, k_nuggets=1)
        assert [run.source for run in found.runs] == ["prompt", "chunk"]
        assert found.runs[1].text.strip() == found.answer.evidence[0].text
        assert found.runs[1].document == found.answer.evidence[0].document


def test_a_title_is_shown_only_where_it_stands_in_the_context(index):
    for title, count in (("shown", 1), ("encoded", 0)):
        found = inspected(index, method=CoinRAGMethod(title=title), k_nuggets=1)
        texts = [run.text for run in found.runs if run.source == "chunk"]
        assert sum(text.startswith("bridge\n") for text in texts) == count


def test_special_tokens_of_the_prompt_are_spelled_out(tmp_path):
    template = "{% for message in messages %}<s>{{ message.content }}</s>{% endfor %}"
    model = save_tiny_model(tmp_path / "chat", {"model_type": "llama"}, chat_template=template)
    docs = write_documents(tmp_path / "docs", {"well.txt": "The well is deep."})
    index = Index.build(docs, tmp_path / "index", BuildOptions(model=str(model), chunk_tokens=96))
    prompt = inspected(index, "How deep is the well?").runs[0]
    assert prompt.text.startswith("<s>Answer the question")
    assert prompt.text.endswith("without explanation.</s><s>")


def llama_like() -> Tokenizer:
    """Words behind a mark for their space, bytes for what is not in the vocabulary."""
    tokens = ["▁", *"abc", *(f"<0x{byte:02X}>" for byte in range(256))]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return tokenizer


@pytest.mark.parametrize("tokenizer", [byte_level(), llama_like()], ids=["bytes", "words"])
@settings(deadline=None)
@given(text=st.text("abc é橋🎏\n\ufffd", min_size=1), cuts=st.lists(st.integers(0, 60)))
def test_text_cut_between_any_tokens_is_whole_when_joined(tokenizer, text, cuts):
    ids = tokenizer.encode(text).ids
    bounds = sorted({0, len(ids), *(cut for cut in cuts if cut < len(ids))})
    cut = _TokenText(tokenizer.decode, ids).cut
    pieces = [cut(start, end) for start, end in pairwise(bounds)]
    assert "".join(pieces) == text
    assert sum(piece.count("\ufffd") for piece in pieces) == text.count("\ufffd")


@pytest.mark.parametrize("tokenizer", [byte_level(), llama_like()], ids=["bytes", "words"])
def test_a_character_stands_where_its_last_token_is(tokenizer):
    ids = tokenizer.encode("a b🎏c").ids
    cut = _TokenText(tokenizer.decode, ids).cut
    singles = [cut(at, at + 1) for at in range(len(ids))]
    assert singles[-4:] == ["", "", "🎏", "c"]
    assert "".join(singles) == "a b🎏c"
    assert (cut(0, len(ids) - 3), cut(len(ids) - 3, len(ids))) == ("a b", "🎏c")


def test_what_is_computed_in_full_is_computed_and_what_is_cached_is_reused(index):
    for method, kind in (
        ("standard_rag", "computed"),
        ("text_nuggets", "computed"),
        ("standard_cag", "reused"),
        ("coinrag", "reused"),
    ):
        found = inspected(index, method=method)
        assert {run.kind for run in found.runs} == {kind}
        assert found.tokens[kind] == found.answer.len_tokens


@pytest.mark.parametrize("check_layer", [0, 1])
@pytest.mark.parametrize("method", [CacheBlend, CoinRAGCacheBlend])
def test_a_probe_computes_all_evidence_up_to_its_layer_and_the_picks_in_all(
    index, method, check_layer
):
    found = inspected(index, method=method(ratio=0.25, check_layer=check_layer))
    prompt = len(index.bench.prompt.prefix_ids)
    evidence = found.answer.len_tokens - prompt
    picks = picked(evidence, 0.25)
    assert found.tokens == {"reused": prompt, "probed": evidence - picks, "computed": picks}
    layers = {run.layers_computed for run in found.runs if run.kind == "probed"}
    assert layers == {check_layer + 1}
    assert found.runs[0].kind == "reused"


def test_epic_computes_the_first_tokens_of_each_chunk(index):
    found = inspected(index, method=EPIC(tokens=4), k_chunks=3)
    assert [(run.kind, run.start) for run in found.runs] == [
        ("reused", 0),
        *[("computed", 0), ("reused", 4)] * 3,
    ]
    assert [run.tokens for run in found.runs if run.kind == "computed"] == [4, 4, 4]


def test_link_tokens_are_computed_and_stand_behind_each_chunk_without_text(index):
    found = inspected(index, method=KVLink(links=3), k_chunks=2)
    assert [run.source for run in found.runs] == ["prompt", "chunk", "links", "chunk", "links"]
    assert {(r.text, r.tokens, r.kind) for r in found.runs if r.source == "links"} == {
        ("", 3, "computed")
    }


@pytest.mark.parametrize("method", METHODS)
def test_neighbours_that_agree_are_one_run(index, method):
    for one, other in pairwise(inspected(index, method=method).runs):
        side_by_side = one.start + one.tokens == other.start
        if (one.source, one.chunk_rank) == (other.source, other.chunk_rank) and side_by_side:
            assert one.layers_computed != other.layers_computed


def test_the_runs_stand_in_the_order_of_the_context(index):
    asker = CoinRAG(index, method=CoinRAGMethod(order="rank"), sampling=SAMPLING)
    pieces = asker.first_token(QUESTIONS[0], answer_tokens=1).context.pieces
    runs = inspect(asker, QUESTIONS[0]).runs
    assert [(r.chunk_rank, r.start, r.start + r.tokens) for r in runs] == [
        (piece.chunk, piece.start, piece.end) for piece in pieces
    ]
    ranks = [rank for rank, _ in groupby(run.chunk_rank for run in runs)]
    assert len(ranks) > len(set(ranks))  # one chunk's nuggets stand apart


def test_one_stage_ranks_are_those_of_its_own_retrieval(index):
    question = QUESTIONS[3]
    found = inspected(index, question, method=CoinRAGMethod(stages=1), k_nuggets=6)
    best = found.answer.evidence[0]
    places = {(r.document, r.chunk) for r in found.runs if r.chunk_rank == 0}
    assert places == {(best.document, best.chunk)}


def test_an_inspection_is_told_in_json(index):
    facts = json.loads(json.dumps(inspected(index, method=KVLink()).to_dict()))
    assert facts["method"] == "kvlink"
    assert set(facts["tokens"]) == {"reused", "probed", "computed"}
    assert {"answer", "ttft_ms", "len_tokens", "runs"} <= set(facts)
    assert facts["runs"][0]["kind"] == "reused"
    assert sum(run["tokens"] for run in facts["runs"]) == facts["len_tokens"]


@pytest.mark.parametrize("question", ["", "why " * 3000])
def test_a_question_that_cannot_be_asked_cannot_be_inspected(index, question):
    with pytest.raises(InputError):
        inspected(index, question)
