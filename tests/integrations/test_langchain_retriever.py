"""The retriever gives LangChain what CoinRAG would put into its context."""

from __future__ import annotations

import asyncio

import pytest
from langchain_core.runnables import RunnableLambda

from coinkv.errors import InputError
from coinkv.integrations.langchain import CoinKVRetriever
from coinkv.rag.ask import CoinRAG
from small_corpus import DOCUMENTS, QUESTIONS


@pytest.mark.parametrize(("unit", "method"), [("nugget", "coinrag"), ("chunk", "standard_rag")])
def test_documents_are_the_evidence_that_coinrag_finds(index, unit, method):
    retriever = CoinKVRetriever(index=index, unit=unit, k_chunks=3, k_nuggets=4)
    asker = CoinRAG(index, method=method, k_chunks=3, k_nuggets=4)
    for question in QUESTIONS[:3]:
        found = retriever.invoke(question)
        evidence = asker.ask(question).evidence
        assert [each.page_content for each in found] == [piece.text for piece in evidence]
        for document, piece in zip(found, evidence, strict=True):
            told = document.metadata
            assert (told["document"], told["title"], told["chunk"], told["score"]) == (
                (piece.document, piece.title, piece.chunk, piece.score)
            )
            assert (told["start"], told["end"]) == (piece.start, piece.end)


def test_a_documents_range_is_where_its_text_stands(index):
    found = CoinKVRetriever(index=index).invoke("Who built the stone bridge?")
    plain = [each for each in found if each.metadata["document"].endswith(".txt")]
    assert plain
    for each in plain:
        text = DOCUMENTS[each.metadata["document"]]
        assert text[each.metadata["start"] : each.metadata["end"]] == each.page_content


def test_numbers_not_given_are_those_of_coinrag(index):
    retriever, asker = CoinKVRetriever(index=index), CoinRAG(index)
    assert len(retriever.invoke(QUESTIONS[0])) == asker.k_nuggets == 10
    assert len(CoinKVRetriever(index=index, unit="chunk").invoke(QUESTIONS[0])) == asker.k_chunks


def test_it_takes_part_in_chains_batches_and_asynchronous_calls(index):
    retriever = CoinKVRetriever(index=index, k_nuggets=2)
    one_by_one = [retriever.invoke(question) for question in QUESTIONS]
    chain = retriever | RunnableLambda(lambda found: [each.page_content for each in found])
    assert retriever.batch(list(QUESTIONS)) == one_by_one
    assert asyncio.run(retriever.ainvoke(QUESTIONS[1])) == one_by_one[1]
    assert chain.invoke(QUESTIONS[2]) == [each.page_content for each in one_by_one[2]]


@pytest.mark.parametrize("question", ["", " \n", "broken \ud800"])
def test_what_is_no_question_is_refused(index, question):
    with pytest.raises(InputError, match="question"):
        CoinKVRetriever(index=index).invoke(question)


@pytest.mark.parametrize("numbers", [{"k_chunks": 0}, {"k_nuggets": 10_000}])
def test_numbers_that_the_index_cannot_give_are_refused_at_once(index, numbers):
    with pytest.raises(InputError, match="the index holds"):
        CoinKVRetriever(index=index, **numbers)


def test_it_can_be_shown_without_its_index(index):
    assert "Catalogue" not in repr(CoinKVRetriever(index=index))
