"""Reuse survives a shift of the text, and recombination of documents for as long as one asks."""

from __future__ import annotations

import random
from collections import Counter
from importlib.resources import files

import numpy as np
import pytest
import torch
from pieces import piece

from coinkv.boost.tree import MOST_VARIANTS
from coinkv.config import BOOST_CHUNK_TOKENS
from coinkv.model.load import load
from tiny_models import SUPPORTED, save_tiny_model

DOCUMENTS, JOINED, QUESTIONS = 60, 14, 200


@pytest.fixture(scope="module")
def document(reader):
    """About 2,000 tokens of a demo document."""
    path = files("coinkv.cli") / "demo_data" / "docs" / "android_robot.md"
    ids = reader.tokenize(path.read_text(encoding="utf-8")).ids
    return list(ids[:2000])


@pytest.fixture(scope="module")
def preambles(reader):
    text = "You help a shepherd who counts sheep. Read what he has written and answer him. "
    ids = list(reader.tokenize(text * 20).ids)
    return [ids[:length] for length in range(1, 201)]


def shares(boost, document, preambles):
    """Which share of the document is found by content behind each preamble."""
    for preamble in preambles:
        plan = boost.plan([*preamble, *document, 5])
        start, end = len(preamble), len(preamble) + len(document)
        found = [
            min(stop, end) - max(begin, start)
            for begin, stop, kind in plan.spans
            if kind == "moved"
        ]
        assert plan.exact == 0
        yield sum(found) / len(document)


@pytest.mark.parametrize("target", [BOOST_CHUNK_TOKENS, 128])
def test_a_document_is_found_by_content_behind_preambles_of_any_length(
    engine, reader, document, preambles, target
):
    boost = engine(reader, chunk_tokens=target)
    boost.warm([9, *document])
    assert len(document) == 2000
    assert min(shares(boost, document, preambles)) >= 0.9


def test_fixed_boundaries_lose_a_document_that_is_shifted(engine, reader, document, preambles):
    boost = engine(reader, chunk_tokens=BOOST_CHUNK_TOKENS, boundaries="fixed")
    boost.warm([9, *document])
    found = list(shares(boost, document, preambles))
    by_a_whole_chunk = found[BOOST_CHUNK_TOKENS]  # one token more, and the grid stands as it stood
    assert by_a_whole_chunk >= 0.9
    assert np.median(found) == 0.0


def test_a_document_is_found_whole_but_for_its_edges(engine, reader, document, preambles):
    boost = engine(reader, chunk_tokens=BOOST_CHUNK_TOKENS)
    boost.warm([9, *document])
    boost.warm([*preambles[40], *document, 5])
    half = document[:1000]
    plan = boost.plan([*preambles[90], *document, *preambles[10], *half, 6])
    assert plan.moved >= 0.98 * len([*document, *half])


def library_texts(documents):
    """Texts of odd lengths."""
    lengths = random.Random(7)
    return [piece(f"document {n}", lengths.randrange(33, 58)) for n in range(documents)]


class Library:
    """Asks questions that each join some of its texts in random order."""

    def __init__(self, boost, texts, joined):
        self.texts = texts
        self._boost, self._joined = boost, joined
        self._random = random.Random(8)

    def ask(self, number):
        """Tokens of a question that were reused exactly, and the share of it that was moved."""
        chosen = self._random.sample(self.texts, self._joined)
        ids = [*piece("system", 20), *(token for text in chosen for token in text)]
        split = self._boost.warm([*ids, *piece(f"question {number}", 40)]).reuse
        return split.exact, (split.moved + split.repaired) / split.total


@pytest.fixture(scope="module")
def librarian(tmp_path_factory):
    options = {**SUPPORTED["llama"], "max_position_embeddings": 1024, "hidden_size": 32}
    return load(str(save_tiny_model(tmp_path_factory.mktemp("librarian"), options)), device="cpu")


@pytest.mark.parametrize(
    "repair", ["selective", pytest.param("cacheblend", marks=pytest.mark.slow)]
)
def test_reuse_does_not_decay_while_documents_are_recombined(engine, librarian, repair):
    """REFERENCE 7, rows 19 and 20."""
    texts = library_texts(DOCUMENTS)
    budget = 2 * sum(map(len, texts)) * (librarian.shape.values_per_token * 4 + 8)
    boost = engine(librarian, budget_bytes=budget, chunk_tokens=8, repair=repair)
    library = Library(boost, texts, JOINED)
    shares = [library.ask(number) for number in range(QUESTIONS)]
    exact, moved = (np.array(column) for column in zip(*shares, strict=True))
    assert moved[150:].mean() >= 0.95 * moved[20:70].mean()
    assert moved[150:].mean() > 0.85
    assert exact[20:].min() >= 20  # the beginning that all questions share
    tiers = boost.stats().cache.tiers
    assert tiers.memory_bytes <= budget
    assert tiers.memory_evictions > 50  # questions of their own kept coming and went again


def test_variants_of_a_text_are_bounded(engine, librarian):
    boost = engine(librarian, chunk_tokens=8)
    library = Library(boost, library_texts(12), 5)
    for number in range(60):
        library.ask(number)
    kept = boost.stats().cache.tokens
    for number in range(60, 90):
        library.ask(number)
    growth = boost.stats().cache.tokens - kept
    assert growth <= 30 * 5 * 12  # edges of documents and questions, never the documents again
    copies = Counter(content for run in boost._cache._tree for _, content in run.chunks)
    known = [boost.plan([*text, 5]).moved for text in library.texts]
    assert min(known) > 25
    assert max(copies.values()) <= 2 * MOST_VARIANTS


def test_documents_of_odd_lengths_are_reused_as_well_as_aligned_ones(engine, librarian):
    """REFERENCE 7, row 20: a fixed grid loses about a chunk at every seam."""
    reused = {}
    for name, lengths in {"aligned": [48] * 10, "odd": [41, 43, 47, 53, 55] * 2}.items():
        boost = engine(librarian, chunk_tokens=8)
        texts = [piece(f"{name} {n}", tokens) for n, tokens in enumerate(lengths)]
        for text in texts:
            boost.warm([*piece("before", 9), *text, *piece("behind", 9)])
        order = torch.randperm(10, generator=torch.Generator().manual_seed(1)).tolist()
        plan = boost.plan([token for n in order for token in texts[n]])
        reused[name] = (plan.exact + plan.moved) / sum(lengths)
    assert reused["odd"] >= reused["aligned"] - 0.02
