"""An index in any codec: smaller, said so, kept so, and answered from as from any other."""

from __future__ import annotations

import dataclasses
import json
import sqlite3

import pytest
import torch
from safetensors import safe_open

from coinkv.errors import IndexMismatchError, InputError
from coinkv.kv.codec import CODECS
from coinkv.methods.blocks import ReadCounts
from coinkv.model.decode import Sampling
from coinkv.rag.ask import CoinRAG
from coinkv.rag.build import build
from coinkv.rag.index import Index
from coinkv.rag.stats import stats
from coinkv.rag.verify import verify
from small_corpus import QUESTIONS, after, block_files, contents_of

METHODS = ("coinrag", "standard_cag", "turborag", "coinrag_cacheblend")


@pytest.fixture
def coded(village, options, tmp_path):
    """Builds the village in a codec; returns the index folder and the report."""

    def made(codec):
        folder = tmp_path / f"index-{codec}"
        return folder, build(village, folder, dataclasses.replace(options, codec=codec))

    return made


def codec_of(path):
    with safe_open(path, framework="pt") as file:
        return file.metadata().get("codec", "raw")


def answers(folder, backbone, method="coinrag"):
    asker = CoinRAG(Index.open(folder, model=backbone), method=method)
    found = [asker.ask(question, sampling=Sampling(6)) for question in QUESTIONS[:3]]
    return [(answer.text, answer.evidence, answer.len_tokens) for answer in found]


def chunk_keys(index, chunk):
    return index.bench.blocks.rows(chunk, None, ReadCounts()).keys


@pytest.mark.parametrize("codec", CODECS)
def test_every_block_is_in_the_codec_and_stats_and_verify_know_it(coded, codec):
    folder, report = coded(codec)
    assert {codec_of(path) for path in block_files(folder)} == {codec}
    facts = stats(folder)
    assert facts["settings"]["codec"] == codec
    assert facts["kv_bytes"] == report.kv_bytes
    checked = verify(folder)
    assert checked.clean
    assert checked.blocks == report.chunks


def test_a_coded_index_holds_the_raw_ones_keys_within_the_bound(built, coded, backbone):
    raw, kivi = (Index.open(folder, model=backbone) for folder in (built[0], coded("kivi")[0]))
    chunk = raw.catalogue.hashes()[0]
    exact, near = chunk_keys(raw, chunk), chunk_keys(kivi, chunk)
    assert near.dtype == exact.dtype == torch.float16
    assert not torch.equal(near, exact)
    spread = float(exact.float().amax() - exact.float().amin())
    assert float((near - exact).abs().max()) <= spread / 191 * 1.01


@pytest.mark.parametrize("method", METHODS)
def test_questions_are_answered_from_a_kivi_index_and_repeat(coded, backbone, method):
    folder, _ = coded("kivi")
    first = answers(folder, backbone, method)
    assert all(text for text, _, _ in first)
    assert answers(folder, backbone, method) == first
    assert {codec_of(path) for path in block_files(folder)} == {"kivi"}


def test_a_damaged_page_of_a_kivi_block_is_recomputed_and_written_in_kivi(coded, backbone):
    folder, _ = coded("kivi")
    before = answers(folder, backbone, "standard_cag")
    whole = contents_of(folder / "blocks")
    for path in block_files(folder):
        content = bytearray(path.read_bytes())
        content[-3] ^= 1
        path.write_bytes(content)
    assert verify(folder).damaged == len(whole)
    asker = CoinRAG(Index.open(folder, model=backbone), method="standard_cag")
    asked = [asker.ask(question, sampling=Sampling(6)) for question in QUESTIONS[:3]]
    damaged = sum(answer.blocks_damaged for answer in asked)
    assert damaged > 1
    assert [(answer.text, answer.evidence, answer.len_tokens) for answer in asked] == before
    assert answers(folder, backbone, "standard_cag") == before
    healed = contents_of(folder / "blocks")
    assert sum(healed[name] == whole[name] for name in whole) == damaged


def test_a_build_goes_on_in_the_codec_of_the_index(coded, village, options, encodings):
    folder, _ = coded("kivi")
    block_files(folder)[0].unlink()
    encodings.clear()
    assert build(village, folder, options).encoded == len(encodings) == 1
    assert build(village, folder, dataclasses.replace(options, codec="kivi")).encoded == 0
    assert {codec_of(path) for path in block_files(folder)} == {"kivi"}
    assert stats(folder)["settings"]["codec"] == "kivi"


@pytest.mark.parametrize(("first", "second"), [("kivi", "raw"), ("raw", "int8")])
def test_building_in_another_codec_is_refused_and_changes_nothing(
    coded, village, options, first, second
):
    folder, _ = coded(first)
    before = contents_of(folder)
    with pytest.raises(IndexMismatchError, match=f"codec {first}, not {second}.*new folder"):
        build(village, folder, dataclasses.replace(options, codec=second))
    assert contents_of(folder) == before


def test_an_unknown_codec_is_refused_before_anything_is_written(village, options, tmp_path):
    with pytest.raises(InputError, match="no codec is called 'zip'"):
        build(village, tmp_path / "index", dataclasses.replace(options, codec="zip"))
    assert not (tmp_path / "index" / "blocks").exists()


def test_an_index_that_does_not_say_its_codec_is_raw(
    village, index_folder, options, backbone, encodings
):
    with sqlite3.connect(index_folder / "catalogue.sqlite") as database:
        name, text = database.execute(
            "SELECT name, value FROM state WHERE name LIKE 'settings%'"
        ).fetchone()
        kept = json.loads(text)
        assert kept.pop("codec") == "raw"
        database.execute("UPDATE state SET value = ? WHERE name = ?", (json.dumps(kept), name))
    database.close()
    assert Index.open(index_folder, model=backbone).settings.codec == "raw"
    assert build(village, index_folder, options).encoded == len(encodings) == 0
    with pytest.raises(IndexMismatchError, match="codec raw, not kivi"):
        build(village, index_folder, dataclasses.replace(options, codec="kivi"))


@pytest.mark.parametrize(("first", "second"), [("kivi", None), ("raw", "kivi"), ("int8", "kivi")])
def test_a_first_build_that_was_cut_off_leaves_no_block_in_another_codec(
    village, options, tmp_path, first, second
):
    folder = tmp_path / "index"
    cut_off = after(4, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        build(village, folder, dataclasses.replace(options, codec=first), cut_off)
    assert {codec_of(path) for path in block_files(folder)} == {first}
    report = build(village, folder, dataclasses.replace(options, codec=second))
    assert report.encoded == report.chunks
    assert {codec_of(path) for path in block_files(folder)} == {second or "raw"}
    assert verify(folder).clean


def test_a_first_build_that_was_cut_off_goes_on_in_its_codec(village, options, tmp_path):
    folder, wanted = tmp_path / "index", dataclasses.replace(options, codec="kivi")
    with pytest.raises(KeyboardInterrupt):
        build(village, folder, wanted, after(4, KeyboardInterrupt()))
    kept = len(block_files(folder))
    report = build(village, folder, wanted)
    assert report.encoded == report.chunks - kept
    assert kept >= 3


def test_the_command_line_builds_in_a_codec_and_says_it(coinkv, village, tmp_path, model_folder):
    folder = tmp_path / "index"
    typed = ("build", village, "--index", folder, "--model", model_folder, "--codec")
    assert coinkv(*typed, "kivi", "--chunk-tokens", 96).code == 0
    assert "blocks, codec kivi\n" in coinkv("index", "stats", "--index", folder).out
    assert coinkv("index", "verify", "--index", folder).code == 0
    refused = coinkv(*typed, "raw")
    assert refused.code == 2
    assert "the index keeps its KV in the codec kivi, not raw" in refused.err
    assert coinkv(*typed, "zip").code == 2
    for codec in CODECS:
        assert codec in coinkv("build", "--help").out
