"""Damage on the disk: answers stay, the fault is counted, the block heals, verify tells."""

from __future__ import annotations

import os
import sqlite3

import pytest

from coinkv.errors import IndexNotFoundError
from coinkv.model.decode import Sampling
from coinkv.rag.ask import CoinRAG
from coinkv.rag.build import build
from coinkv.rag.index import Index
from coinkv.rag.verify import verify
from small_corpus import QUESTIONS, block_files

ALL = {"method": "standard_cag", "sampling": Sampling(6)}


def flip(path):
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)


def flip_header(path):
    content = bytearray(path.read_bytes())
    content[20] ^= 1
    path.write_bytes(content)


def truncate(path):
    os.truncate(path, path.stat().st_size * 2 // 3)


def empty(path):
    os.truncate(path, 0)


def remove(path):
    path.unlink()


DAMAGES = [flip, flip_header, truncate, empty, remove]


def asked(index, **options):
    asker = CoinRAG(index, k_chunks=index.vectors.chunks, **options)
    return [asker.ask(question) for question in QUESTIONS[:3]]


def texts(answers):
    return [(answer.text, answer.evidence, answer.len_tokens) for answer in answers]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("opened_before", [True, False])
def test_damage_changes_no_answer_is_counted_and_heals(
    index_folder, backbone, damage, opened_before
):
    index = Index.open(index_folder, model=backbone)
    before = texts(asked(index, **ALL))
    path = block_files(index_folder)[2]
    whole = path.read_bytes()
    damage(path)
    if not opened_before:
        index = Index.open(index_folder, model=backbone)
    answers = asked(index, **ALL)
    assert texts(answers) == before
    counts = [(answer.blocks_missing, answer.blocks_damaged) for answer in answers]
    assert counts == [(1, 0) if damage is remove else (0, 1), (0, 0), (0, 0)]
    assert path.read_bytes() == whole
    assert verify(index_folder).clean


def test_damage_of_every_block_changes_no_answer_of_coinrag(index_folder, backbone):
    index = Index.open(index_folder, model=backbone)
    options = {"k_nuggets": 10, "sampling": Sampling(6)}
    before = texts(asked(index, **options))
    for path in block_files(index_folder):
        truncate(path)
    answers = asked(index, **options)
    assert texts(answers) == before
    assert answers[0].blocks_damaged > 1


@pytest.mark.parametrize("damage", DAMAGES)
def test_verify_names_the_damaged_block_and_changes_nothing(index_folder, damage):
    assert verify(index_folder).clean
    path = block_files(index_folder)[0]
    damage(path)
    was = path.read_bytes() if path.exists() else None
    report = verify(index_folder)
    assert not report.clean
    assert len(report.problems) == 1
    assert path.stem[:12] in report.problems[0]
    assert (report.missing, report.damaged) == ((1, 0) if damage is remove else (0, 1))
    assert (path.read_bytes() if path.exists() else None) == was
    assert report.to_dict()["problems"] == list(report.problems)


def test_repair_removes_damaged_blocks_and_the_next_build_encodes_them(
    village, index_folder, options
):
    flip(block_files(index_folder)[0])
    report = verify(index_folder, repair=True)
    assert (report.damaged, report.removed) == (1, 1)
    assert verify(index_folder).missing == 1
    assert build(village, index_folder, options).encoded == 1
    assert verify(index_folder, repair=True).removed == 0
    assert verify(index_folder).clean


def test_verify_counts_blocks_that_no_chunk_needs_without_complaint(village, index_folder, options):
    stray = index_folder / "blocks" / "ff" / f"{'f' * 64}.safetensors"
    stray.parent.mkdir(exist_ok=True)
    stray.write_bytes(block_files(index_folder)[0].read_bytes())
    report = verify(index_folder)
    assert (report.clean, report.unneeded) == (True, 1)
    build(village, index_folder, options)
    assert not stray.exists()
    assert verify(index_folder).unneeded == 0


def test_verify_finds_damaged_vectors_and_a_build_makes_them_anew(village, index_folder, options):
    vectors = next((index_folder / "vectors").rglob("nugget_vectors.npy"))
    flip(vectors)
    report = verify(index_folder)
    assert not report.clean
    assert "nugget_vectors.npy" in report.problems[0]
    assert build(village, index_folder, options).encoded == 0
    assert verify(index_folder).clean


def test_verify_finds_vectors_that_are_gone(index_folder):
    next((index_folder / "vectors").rglob("chunk_vectors.npy")).unlink()
    assert "missing or damaged" in verify(index_folder).problems[0]


def test_verify_reports_a_catalogue_that_cannot_be_opened(index_folder):
    (index_folder / "catalogue.sqlite").write_bytes(b"not a database" * 400)
    report = verify(index_folder)
    assert len(report.problems) == 1
    assert "catalogue" in report.problems[0]


def test_verify_reports_a_chunk_that_the_catalogue_lost(index_folder):
    with sqlite3.connect(index_folder / "catalogue.sqlite") as database:
        database.execute("DELETE FROM contents WHERE rowid = 1")
    database.close()
    assert any("is missing" in problem for problem in verify(index_folder).problems)


def test_verify_finds_a_chunk_whose_tokens_changed_in_the_catalogue(index_folder):
    with sqlite3.connect(index_folder / "catalogue.sqlite") as database:
        (tokens,) = database.execute("SELECT token_ids FROM contents WHERE rowid = 1").fetchone()
        changed = bytes([tokens[0] ^ 1]) + tokens[1:]
        database.execute("UPDATE contents SET token_ids = ? WHERE rowid = 1", (changed,))
    database.close()
    (problem,) = verify(index_folder).problems
    assert "has changed" in problem


def test_verify_of_no_index_is_an_error(tmp_path):
    with pytest.raises(IndexNotFoundError, match="no index"):
        verify(tmp_path)
    assert list(tmp_path.iterdir()) == []
