"""Evidence is what stood in the context: the right characters of the right document."""

from __future__ import annotations

import numpy as np
import pytest

from coinkv.methods.registry import METHODS
from coinkv.model.decode import Sampling
from coinkv.rag.ask import CoinRAG
from coinkv.rag.build import build
from coinkv.rag.index import Index
from small_corpus import QUESTIONS, write_documents

SOURCES = ("bridge.txt", "mill.md", "school.html", "fish.txt", "bridge.txt", "fish.txt")


def evidence(index, question, **options):
    return CoinRAG(index, sampling=Sampling(1), **options).ask(question).evidence


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("question", "document"), list(zip(QUESTIONS, SOURCES, strict=True)))
def test_the_best_evidence_is_of_the_document_that_answers(index, method, question, document):
    assert evidence(index, question, method=method)[0].document == document


@pytest.mark.parametrize("method", METHODS)
def test_evidence_is_quoted_from_its_document_and_lies_in_its_chunk(index, method):
    for piece in evidence(index, QUESTIONS[1], method=method):
        document = index.catalogue.document(piece.document)
        assert document.text[piece.start : piece.end] == piece.text
        assert piece.chunk_start <= piece.start < piece.end <= piece.chunk_end
        assert piece.title == document.title
        places = index.catalogue.placements()
        place = next(
            p for p in places if (p.document_key, p.ordinal) == (piece.document, piece.chunk)
        )
        assert (place.start, place.end) == (piece.chunk_start, piece.chunk_end)


def test_methods_of_whole_chunks_show_whole_chunks(index):
    pieces = evidence(index, QUESTIONS[0], method="standard_cag", k_chunks=3)
    assert len(pieces) == 3
    assert all((p.start, p.end) == (p.chunk_start, p.chunk_end) for p in pieces)


def test_coinrag_shows_as_many_nuggets_as_were_asked_for_best_first(index):
    pieces = evidence(index, QUESTIONS[0], k_nuggets=4)
    assert pieces[0].text == "The stone bridge was built in 1843 by Anna Holm."
    scores = [piece.score for piece in pieces]
    assert len(scores) == 4
    assert scores == sorted(scores, reverse=True)


def test_a_score_is_the_cosine_of_question_and_nugget(index):
    best = evidence(index, QUESTIONS[0], k_nuggets=1)[0]
    question, nugget = index.embedder.embed([QUESTIONS[0]])[0], index.embedder.embed([best.text])[0]
    assert best.score == pytest.approx(float(np.dot(question, nugget)), abs=1e-4)


def test_nuggets_come_from_the_retrieved_chunks_only(index):
    everywhere = evidence(index, QUESTIONS[2], k_chunks=index.vectors.chunks)
    narrow = evidence(index, QUESTIONS[2], k_chunks=1)
    assert len({(p.document, p.chunk) for p in narrow}) == 1
    assert len({(p.document, p.chunk) for p in everywhere}) > 1


def test_a_chunk_of_several_documents_is_shown_in_the_first(tmp_path, options):
    for name in ("b", "a"):
        write_documents(tmp_path / "docs" / name, {"same.txt": "The weir was raised in 1931."})
    build(tmp_path / "docs", tmp_path / "index", options)
    index = Index.open(tmp_path / "index", model=options.model)
    assert [p.document for p in evidence(index, "When was the weir raised?")] == ["a/same.txt"]
