"""Documents taken out of an index: gone from answers and disk, nothing encoded again."""

from __future__ import annotations

import dataclasses

import pytest

from coinkv.corpus.extract.sentences import SentenceExtractor
from coinkv.errors import IndexMismatchError, IndexNotFoundError, InputError
from coinkv.model.decode import Sampling
from coinkv.rag.ask import CoinRAG
from coinkv.rag.build import build
from coinkv.rag.index import Index
from coinkv.rag.remove import remove
from coinkv.rag.stats import stats
from coinkv.rag.verify import verify
from coinkv.retrieval.embed import Embedder
from small_corpus import DOCUMENTS, QUESTIONS, after, block_files, contents_of, load_embedder_once


def test_a_removed_document_is_no_evidence_any_more(index_folder, backbone, encodings):
    index = Index.open(index_folder, model=backbone)
    before = CoinRAG(index, sampling=Sampling(1)).ask(QUESTIONS[0])
    assert before.evidence[0].document == "bridge.txt"
    assert remove(index_folder, ["bridge.txt", "fish.txt"]) == len(DOCUMENTS) - 2
    facts = stats(index_folder)
    assert facts["document_keys"] == ["mill.md", "school.html", "words.txt"]
    assert facts["documents"] == 3
    after_removal = CoinRAG(Index.open(index_folder, model=backbone), sampling=Sampling(1))
    shown = {piece.document for piece in after_removal.ask(QUESTIONS[0]).evidence}
    assert not shown & {"bridge.txt", "fish.txt"}
    assert encodings == []
    assert verify(index_folder).clean


def test_an_index_that_is_open_goes_on_answering_after_a_removal(index_folder, backbone):
    asker = CoinRAG(Index.open(index_folder, model=backbone), sampling=Sampling(4))
    before = asker.ask(QUESTIONS[0])
    remove(index_folder, ["bridge.txt"])
    again = asker.ask(QUESTIONS[0])
    assert (again.text, again.evidence) == (before.text, before.evidence)
    assert again.blocks_missing == 0


def test_blocks_of_removed_documents_leave_the_disk_with_the_next_change(
    village, index_folder, options
):
    before = len(block_files(index_folder))
    remove(index_folder, ["bridge.txt"])
    remove(index_folder, ["fish.txt"])
    remove(index_folder, ["words.txt"])
    assert stats(index_folder)["chunks"] < len(block_files(index_folder)) < before


def test_a_removed_document_comes_back_with_the_next_build(village, index_folder, options):
    chunks = stats(index_folder)["chunks"]
    remove(index_folder, ["mill.md"])
    assert build(village, index_folder, options).chunks == chunks
    assert verify(index_folder).clean


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (["bridge.txt", "none.txt"], "no document 'none.txt'"),
        (list(DOCUMENTS), "cannot be empty"),
    ],
)
def test_a_removal_that_cannot_be_done_changes_nothing(index_folder, keys, message):
    before = stats(index_folder)
    with pytest.raises(InputError, match=message):
        remove(index_folder, keys)
    assert stats(index_folder) == before


def test_a_folder_without_an_index_gets_no_lock_file(tmp_path):
    with pytest.raises(IndexNotFoundError):
        remove(tmp_path, ["a"])
    assert contents_of(tmp_path) == {}


class Mirrored(Embedder):
    """Vectors that point the other way."""

    identity = "another embedder"

    def __init__(self):
        self.real = load_embedder_once()
        self.dimension = self.real.dimension

    def embed(self, texts):
        return -self.real.embed(texts)


def test_vectors_of_two_embedders_never_mix(village, index_folder, options, backbone, monkeypatch):
    monkeypatch.setattr("coinkv.rag.options.load_embedder", lambda name: Mirrored())
    with pytest.raises(RuntimeError, match="cut off"):
        build(village, index_folder, options, after(3, RuntimeError("cut off")))
    with pytest.raises(IndexMismatchError, match="run that build again"):
        remove(index_folder, ["fish.txt"])
    assert stats(index_folder)["documents"] == len(DOCUMENTS)
    build(village, index_folder, options)
    assert remove(index_folder, ["fish.txt"]) == len(DOCUMENTS) - 1
    with pytest.raises(IndexMismatchError, match="the vectors were made by"):
        Index.open(index_folder, model=backbone)


def test_a_removal_keeps_the_settings_of_the_index(village, tmp_path, options):
    folder = tmp_path / "index"
    other = dataclasses.replace(
        options, encode_after="nothing", extractor=SentenceExtractor(max_words=12)
    )
    build(village, folder, other)
    before = stats(folder)["settings"]
    remove(folder, ["fish.txt"])
    assert stats(folder)["settings"] == before
    assert before["encode_after"] == "nothing"
