"""The query engine answers as CoinRAG does, and tells LlamaIndex what the answer stands on."""

from __future__ import annotations

import asyncio

import pytest
from llama_index.core.base.response.schema import Response
from llama_index.core.schema import QueryBundle

from coinkv.errors import InputError
from coinkv.integrations.llama_index import CoinKVQueryEngine
from coinkv.model.decode import Sampling
from coinkv.rag.ask import CoinRAG
from small_corpus import QUESTIONS

SAMPLING = Sampling(max_tokens=12)


@pytest.fixture
def asker(index):
    return CoinRAG(index, k_chunks=3, k_nuggets=4, sampling=SAMPLING)


def sources(response):
    return [(each.text, each.score, each.metadata) for each in response.source_nodes]


def facts(evidence):
    told = [
        {name: value for name, value in vars(piece).items() if name != "text"} for piece in evidence
    ]
    return [(piece.text, piece.score, each) for piece, each in zip(evidence, told, strict=True)]


@pytest.mark.parametrize("method", ["coinrag", "standard_rag"])
def test_a_response_is_the_answer_with_its_evidence_as_source_nodes(index, method):
    asker = CoinRAG(index, method=method, k_chunks=3, k_nuggets=4, sampling=SAMPLING)
    for question in QUESTIONS[:2]:
        wanted = asker.ask(question)
        response = CoinKVQueryEngine(asker).query(question)
        assert isinstance(response, Response)
        assert response.response == wanted.text
        assert sources(response) == facts(wanted.evidence)
        assert len(wanted.evidence) in (3, 4)


def test_the_metadata_say_how_long_the_first_token_took_and_why(asker):
    told = CoinKVQueryEngine(asker).query(QUESTIONS[0]).metadata
    assert told["ttft_ms"] == pytest.approx(sum(told["stages_ms"].values()))
    assert set(told["stages_ms"]) >= {"embed", "retrieve", "prefill"}
    assert told["method"] == "coinrag"
    assert told["answer_tokens"] <= 12
    assert not {"answer", "evidence"} & set(told)


def test_a_streaming_response_has_its_sources_first_and_all_facts_at_its_end(asker):
    whole = CoinKVQueryEngine(asker).query(QUESTIONS[0])
    response = CoinKVQueryEngine(asker, streaming=True).query(QUESTIONS[0])
    assert sources(response) == sources(whole)
    assert set(response.metadata) == {"ttft_ms", "stages_ms"}
    pieces = list(response.response_gen)
    assert len(pieces) > 1
    assert "".join(pieces) == whole.response
    assert set(response.metadata) == set(whole.metadata)


def test_asynchronous_queries_give_the_same_streaming_or_not(asker):
    whole = CoinKVQueryEngine(asker).query(QUESTIONS[1])

    async def asked():
        response = await CoinKVQueryEngine(asker).aquery(QueryBundle(QUESTIONS[1]))
        stream = await CoinKVQueryEngine(asker, streaming=True).aquery(QUESTIONS[1])
        return response, "".join([piece async for piece in stream.response_gen]), stream

    response, streamed, stream = asyncio.run(asked())
    assert response.response == streamed == whole.response
    assert sources(stream) == sources(response) == sources(whole)
    assert set(stream.metadata) == set(whole.metadata)


@pytest.mark.parametrize("streaming", [False, True])
def test_an_empty_question_is_refused(asker, streaming):
    with pytest.raises(InputError, match="empty"):
        CoinKVQueryEngine(asker, streaming=streaming).query("  ")
