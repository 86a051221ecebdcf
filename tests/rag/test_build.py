"""Builds tell the truth, encode only what is new, and leave nothing behind when they cannot."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from coinkv.corpus.catalogue import Catalogue
from coinkv.corpus.extract.sentences import SentenceExtractor
from coinkv.errors import (
    IndexNotFoundError,
    InputError,
)
from coinkv.model.decode import Sampling
from coinkv.model.load import load
from coinkv.rag.ask import CoinRAG
from coinkv.rag.build import BuildOptions, build
from coinkv.rag.index import Index
from coinkv.rag.stats import stats
from coinkv.rag.verify import verify
from small_corpus import CHUNK_TOKENS, DOCUMENTS, QUESTIONS, after, block_files, write_documents


def answers(folder, backbone, **options):
    return asked(CoinRAG(Index.open(folder, model=backbone), **options))


def asked(asker):
    return [(a.text, a.evidence) for a in (asker.ask(q, sampling=Sampling(4)) for q in QUESTIONS)]


def test_the_report_counts_what_the_index_holds(built, backbone):
    folder, report = built
    index = Index.open(folder, model=backbone)
    contents = index.catalogue.contents(index.catalogue.hashes()).values()
    assert report.documents == len(DOCUMENTS)
    assert report.chunks == report.encoded == len(contents) == len(block_files(folder)) > 8
    assert report.reused == 0
    assert report.tokens == sum(len(content.token_ids) for content in contents)
    assert report.nuggets["exact"] == sum(len(content.nuggets) for content in contents) > 15
    assert report.nuggets["fuzzy"] == report.nuggets["abandoned"] == 0
    body = report.tokens - sum(content.header_tokens for content in contents)
    covered = sum(content.covered_tokens for content in contents)
    assert report.nuggets["coverage"] == pytest.approx(covered / body)
    assert report.nuggets["coverage"] > 0.9
    assert report.kv_bytes == sum(path.stat().st_size for path in block_files(folder))
    # float16 keys and values: the KV itself is the largest part of the files
    kv = report.tokens * backbone.shape.values_per_token * 2
    assert kv < report.kv_bytes < 1.5 * kv
    assert report.build_over_prefill > 0


def test_the_report_as_json_has_the_facts_that_were_promised(built):
    facts = json.loads(json.dumps(built[1].to_dict()))
    assert set(facts["nuggets"]) == {"exact", "fuzzy", "abandoned", "coverage"}
    assert {"documents", "chunks", "tokens", "kv_bytes", "seconds"} <= set(facts)
    assert facts["ratios"]["build_over_prefill"] > 0
    assert sum(facts["stage_seconds"].values()) <= facts["seconds"]


def test_building_again_encodes_nothing(village, index_folder, options, encodings):
    report = build(village, index_folder, options)
    assert (report.encoded, encodings) == (0, [])
    assert report.build_over_prefill is None
    assert report.reused == report.chunks
    assert verify(index_folder).clean


def test_a_changed_document_encodes_its_new_chunks_only(village, index_folder, options, encodings):
    before = {path.name for path in block_files(index_folder)}
    docs = Path(shutil.copytree(village, index_folder.parent / "docs"))
    old = (docs / "fish.txt").read_text()
    (docs / "fish.txt").write_text(old.replace("12 crowns", "15 crowns"))
    report = build(docs, index_folder, options)
    assert report.encoded == len(encodings) == 1
    assert report.chunks == report.reused + 1
    after_change = {path.name for path in block_files(index_folder)}
    assert len(after_change - before) == 1


def test_an_added_document_encodes_its_own_chunks_only(village, index_folder, options, encodings):
    docs = Path(shutil.copytree(village, index_folder.parent / "docs"))
    (docs / "smith.txt").write_text("The smith made the bell in 1790. He had 4 sons.")
    report = build(docs, index_folder, options)
    assert report.documents == len(DOCUMENTS) + 1
    assert report.encoded == len(encodings) == 1


def test_a_removed_document_encodes_nothing_and_stays_only_with_keep(
    village, index_folder, options, encodings
):
    docs = Path(shutil.copytree(village, index_folder.parent / "docs"))
    (docs / "mill.md").unlink()
    kept = build(docs, index_folder, dataclasses.replace(options, keep=True))
    assert kept.documents == len(DOCUMENTS)
    removed = build(docs, index_folder, options)
    assert removed.documents == len(DOCUMENTS) - 1
    assert "mill.md" not in stats(index_folder)["document_keys"]
    assert removed.chunks < kept.chunks
    assert encodings == []


def test_keep_takes_the_sources_version_of_a_document_both_have(
    village, index_folder, options, encodings
):
    docs = write_documents(index_folder.parent / "docs", {"fish.txt": "Carp live in the pond."})
    report = build(docs, index_folder, dataclasses.replace(options, keep=True))
    assert report.documents == len(DOCUMENTS)
    assert report.encoded == len(encodings) == 1


@pytest.mark.parametrize("error", [RuntimeError("power cut"), KeyboardInterrupt()])
def test_an_interrupted_build_goes_on_where_it_was(village, tmp_path, options, encodings, error):
    folder = tmp_path / "index"
    with pytest.raises(type(error)):
        build(village, folder, options, after(5, error))
    assert len(encodings) == 5
    with pytest.raises(IndexNotFoundError, match="did not finish"):
        Index.open(folder, model=options.model)
    report = build(village, folder, options)
    assert report.encoded == report.chunks - 5
    assert len(encodings) == report.chunks
    assert verify(folder).clean


@pytest.mark.parametrize("change", [{"encode_after": "nothing"}, {"chunk_tokens": 48}, {}])
def test_the_old_index_answers_as_before_while_a_build_lies_unfinished(
    index_folder, options, backbone, change
):
    before = answers(index_folder, backbone)
    docs = write_documents(index_folder.parent / "new", {"bridge.txt": "A tunnel. " * 80})
    other = dataclasses.replace(options, extractor=SentenceExtractor(max_words=12), **change)
    with pytest.raises(RuntimeError, match="cut off"):
        build(docs, index_folder, other, after(2, RuntimeError("cut off")))
    assert answers(index_folder, backbone) == before
    assert verify(index_folder).clean
    build(docs, index_folder, other)
    assert answers(index_folder, backbone, k_chunks=1, k_nuggets=1) != before


def test_a_build_cut_off_at_its_last_step_leaves_the_old_index_as_it_was(
    village, index_folder, options, backbone, monkeypatch
):
    before = answers(index_folder, backbone), stats(index_folder)["settings"]

    def cut_off(*_):
        raise RuntimeError("cut off")

    monkeypatch.setattr(Catalogue, "publish", cut_off)
    other = dataclasses.replace(options, encode_after="nothing", title_header=False)
    with pytest.raises(RuntimeError, match="cut off"):
        build(village, index_folder, other)
    assert (answers(index_folder, backbone), stats(index_folder)["settings"]) == before
    assert verify(index_folder).clean


def test_an_index_that_is_open_answers_on_after_a_rebuild(village, index_folder, options, backbone):
    asker = CoinRAG(Index.open(index_folder, model=backbone))
    before = asked(asker)
    docs = write_documents(
        index_folder.parent / "new",
        {**DOCUMENTS, "bridge.txt": "A tunnel was dug in 1999.", "mill.md": "The mill burnt down."},
    )
    build(docs, index_folder, options)
    assert asked(asker) == before
    assert answers(index_folder, backbone) != before


def test_new_nuggets_cost_no_encoding(village, index_folder, options, encodings):
    finer = dataclasses.replace(options, extractor=SentenceExtractor(max_words=4, min_words=2))
    report = build(village, index_folder, finer)
    assert (report.encoded, encodings) == (0, [])
    assert report.nuggets["exact"] > 30


def test_a_block_that_was_lost_is_encoded_without_extracting_again(
    village, index_folder, options, encodings
):
    block_files(index_folder)[0].unlink()
    assert verify(index_folder).missing == 1

    class Refuses(SentenceExtractor):
        identity = SentenceExtractor().identity

        def extract(self, text):
            raise AssertionError("extracted again")

    report = build(village, index_folder, dataclasses.replace(options, extractor=Refuses()))
    assert report.encoded == len(encodings) == 1
    assert verify(index_folder).clean


def test_an_index_of_fewer_chunks_and_nuggets_than_the_defaults_answers(tmp_path, options):
    docs = write_documents(tmp_path / "docs", {"one.txt": "The well is 9 meters deep."})
    report = build(docs, tmp_path / "index", options)
    assert (report.documents, report.chunks, report.nuggets["exact"]) == (1, 1, 1)
    answer = CoinRAG(Index.open(tmp_path / "index", model=options.model)).ask("How deep is it?")
    assert [piece.text for piece in answer.evidence] == ["The well is 9 meters deep."]


def test_a_document_without_nuggets_is_indexed_and_asked_without_evidence(tmp_path, options):
    docs = write_documents(tmp_path / "docs", {"dots.txt": "... --- ..."})
    report = build(docs, tmp_path / "index", options)
    assert (report.chunks, report.nuggets["exact"], report.nuggets["coverage"]) == (1, 0, 0.0)
    index = Index.open(tmp_path / "index", model=options.model)
    assert CoinRAG(index).ask("Morse?").evidence == ()
    assert len(CoinRAG(index, method="standard_cag").ask("Morse?").evidence) == 1
    with pytest.raises(InputError, match="the index holds 0"):
        CoinRAG(index, k_nuggets=1)


def test_equal_documents_share_their_chunks(tmp_path, options):
    text = {"copy.txt": DOCUMENTS["fish.txt"]}
    for name in ("a", "b"):
        write_documents(tmp_path / "docs" / name, text)
    report = build(tmp_path / "docs", tmp_path / "index", options)
    assert report.documents == 2
    assert stats(tmp_path / "index")["document_keys"] == ["a/copy.txt", "b/copy.txt"]
    assert report.chunks == len(block_files(tmp_path / "index"))
    index = Index.open(tmp_path / "index", model=options.model)
    assert len(index.catalogue.placements()) == 2 * report.chunks


def test_other_scripts_and_emoji_come_back_as_they_were(built, backbone):
    index = Index.open(built[0], model=backbone)
    asker = CoinRAG(index, k_chunks=index.vectors.chunks, k_nuggets=index.vectors.nuggets)
    found = [piece for piece in asker.ask("Fluss").evidence if piece.document == "words.txt"]
    text = index.catalogue.document("words.txt").text
    assert "橋は一八四三年に建てられた。" in {piece.text for piece in found}
    assert any("🎏🐟" in piece.text for piece in found)
    assert all(text[piece.start : piece.end] == piece.text for piece in found)


def test_an_index_opens_by_itself_from_any_directory(village, model_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(model_folder.parent)
    relative = BuildOptions(model=model_folder.name, chunk_tokens=CHUNK_TOKENS)
    build(village / "fish.txt", tmp_path / "index", relative)
    monkeypatch.chdir(tmp_path)
    index = Index.open("index")
    assert index.settings.chunk_tokens == CHUNK_TOKENS
    assert CoinRAG(index).ask("What does a licence cost?").evidence[0].document == "fish.txt"


def test_build_and_open_are_one_call(village, tmp_path, options):
    index = Index.build(village / "fish.txt", tmp_path / "index", options)
    assert index.vectors.chunks == len(index.catalogue.hashes())


def test_a_promised_context_is_kept_with_the_index(village, model_folder, tmp_path):
    options = BuildOptions(model=str(model_folder), chunk_tokens=CHUNK_TOKENS, max_context=512)
    index = Index.build(village / "fish.txt", tmp_path / "index", options)
    assert Index.open(tmp_path / "index").backbone.context_length == 512
    assert index.backbone.fingerprint == load(str(model_folder)).fingerprint
