"""Answers do not depend on order, company or threads; bad questions and numbers are refused."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from coinkv.corpus.catalogue import Catalogue
from coinkv.errors import InputError
from coinkv.methods.registry import METHODS
from coinkv.methods.standard_cag import StandardCAG
from coinkv.model.decode import Sampling
from coinkv.rag.ask import CoinRAG
from coinkv.rag.build import BuildOptions
from coinkv.rag.index import BLOCKS, CATALOGUE, Index
from coinkv.rag.publish import publish
from coinkv.rag.settings import published_settings
from coinkv.store.disk import DiskStore
from small_corpus import QUESTIONS, write_documents

NAMES = ("Anna Holm", "Peter Sand", "Marta Lund", "the miller", "the teacher")
FIFTY = [
    f"{word} did {name} {verb}?"
    for word in ("What", "When")
    for name in NAMES
    for verb in ("build", "buy", "keep", "sell", "see")
]


def facts(answer):
    return answer.text, answer.evidence, answer.len_tokens, answer.answer_tokens


def test_fifty_questions_in_any_order_and_from_four_threads_get_the_same_answers(index):
    assert len(set(FIFTY)) == 50
    asker = CoinRAG(index, sampling=Sampling(5))
    expected = {question: facts(asker.ask(question)) for question in FIFTY}
    assert len({text for text, *_ in expected.values()}) > 20
    for seed in (1, 2):
        for question in random.Random(seed).sample(FIFTY, 50):
            assert facts(asker.ask(question)) == expected[question]
    shuffled = random.Random(3).sample(FIFTY * 2, 100)
    with ThreadPoolExecutor(4) as pool:
        for question, answer in zip(shuffled, pool.map(asker.ask, shuffled), strict=True):
            assert facts(answer) == expected[question]


@pytest.mark.parametrize("name", ["k_chunks", "k_nuggets"])
@pytest.mark.parametrize("value", [0, -1, 10_000])
def test_a_k_outside_what_there_is_is_refused(index, name, value):
    with pytest.raises(InputError, match=rf"{name} is {value}.*use 1 to \d+"):
        CoinRAG(index, **{name: value})


@pytest.mark.parametrize("question", ["", " \n\t ", "\ud800"])
def test_a_question_that_is_empty_or_no_text_is_refused(index, question):
    with pytest.raises(InputError):
        CoinRAG(index).ask(question)


def test_a_question_longer_than_the_window_is_refused(index):
    with pytest.raises(InputError, match=r"the context window of .* holds 2048"):
        CoinRAG(index).ask("why " * 3000)


def test_an_answer_longer_than_the_window_is_refused(index):
    with pytest.raises(InputError, match="holds 2048"):
        CoinRAG(index).ask(QUESTIONS[0], sampling=Sampling(max_tokens=5000))


@pytest.mark.parametrize("method", METHODS)
def test_the_stages_add_up_to_the_wall_clock(index, method):
    asker = CoinRAG(index, method=method)
    asker.first_token(QUESTIONS[0], answer_tokens=1)
    shares = []
    for question in QUESTIONS:
        started = time.perf_counter()
        first = asker.first_token(question, answer_tokens=1)
        wall = time.perf_counter() - started
        assert list(first.clock.stages_seconds) == [
            "embed",
            "retrieve",
            "read",
            "compose",
            "prefill",
        ]
        shares.append(sum(first.clock.stages_seconds.values()) / wall)
    assert max(shares) <= 1
    assert max(shares) > 0.98


def test_an_answer_states_the_stages_of_its_own_first_token(index):
    answer = CoinRAG(index, sampling=Sampling(3)).ask(QUESTIONS[0])
    assert answer.ttft_seconds == pytest.approx(sum(answer.stages_seconds.values()))
    facts = answer.to_dict()
    assert facts["ttft_ms"] == pytest.approx(sum(facts["stages_ms"].values()))
    assert {"answer", "evidence", "len_tokens", "method"} <= set(facts)


@pytest.mark.parametrize("seed", range(12))
def test_the_pieces_of_a_stream_joined_are_the_answer(index, seed):
    sampling = Sampling(30, temperature=1.5, seed=seed)
    stream = CoinRAG(index).stream(QUESTIONS[seed % 6], sampling=sampling)
    assert stream.ttft_seconds > 0
    with pytest.raises(InputError, match="iterate"):
        _ = stream.answer
    pieces = list(stream)
    assert "".join(pieces) == stream.answer.text == stream.answer.text.strip()
    assert all(pieces)
    assert list(stream) == []  # it is decoded once
    assert "".join(pieces) == stream.answer.text


def test_sampling_options_arrive(index):
    asker = CoinRAG(index, sampling=Sampling(20))
    greedy = asker.ask(QUESTIONS[0])
    assert greedy.answer_tokens <= 20
    sampled = [
        asker.ask(QUESTIONS[0], sampling=Sampling(20, temperature=2.0, seed=seed)).text
        for seed in (1, 1, 2)
    ]
    assert sampled[0] == sampled[1]
    assert len({greedy.text, *sampled}) == 3
    narrow = Sampling(20, temperature=2.0, top_p=1e-9, seed=1)
    assert asker.ask(QUESTIONS[0], sampling=narrow).text == greedy.text
    stop = greedy.text[3]
    stopped = asker.ask(QUESTIONS[0], sampling=Sampling(20, stop=(stop,)))
    assert stopped.text == greedy.text[: greedy.text.index(stop)].strip()
    assert stopped.finish_reason == "stop"
    none = asker.ask(QUESTIONS[0], sampling=Sampling(0))
    assert (none.text, none.answer_tokens) == ("", 0)


def test_a_method_may_be_given_as_an_object(index):
    by_name = CoinRAG(index, method="standard_cag", sampling=Sampling(4)).ask(QUESTIONS[0])
    by_object = CoinRAG(index, method=StandardCAG(), sampling=Sampling(4)).ask(QUESTIONS[0])
    assert facts(by_name) == facts(by_object)
    with pytest.raises(InputError, match="no method is called"):
        CoinRAG(index, method="magic")


def test_fewer_tokens_stand_in_the_context_of_coinrag_than_of_whole_chunks(index):
    lengths = {
        method: CoinRAG(index, method=method, k_nuggets=3, sampling=Sampling(1))
        .ask(QUESTIONS[0])
        .len_tokens
        for method in METHODS
    }
    assert lengths["standard_rag"] == lengths["standard_cag"] > 1.5 * lengths["coinrag"]


@pytest.fixture(scope="module")
def default_index(tmp_path_factory):
    """Two documents, read by the real default model."""
    folder = tmp_path_factory.mktemp("default")
    docs = {
        "holm.txt": "The stone bridge over the Arve was built in 1843 by the engineer Anna Holm.",
        "fish.txt": "A fishing licence for the Arve costs 12 crowns a year.",
    }
    return Index.build(write_documents(folder / "docs", docs), folder / "index", BuildOptions())


@pytest.mark.parametrize("method", METHODS)
def test_the_default_model_answers_from_the_documents(default_index, method):
    asker = CoinRAG(default_index, method=method, sampling=Sampling(30))
    answer = asker.ask("Who built the stone bridge?")
    assert "Holm" in answer.text
    assert answer.evidence[0].document == "holm.txt"
    assert "12" in asker.ask("How much does a fishing licence cost?").text


def test_of_one_chunk_the_default_model_sees_what_full_prefill_sees(default_index):
    logits = {}
    for method in ("standard_rag", "standard_cag"):
        asker = CoinRAG(default_index, method=method, k_chunks=1)
        logits[method] = asker.first_token("Who built the bridge?", answer_tokens=1).logits
    difference = (logits["standard_cag"] - logits["standard_rag"]).abs().max()
    assert float(difference) < 5e-3 * float(logits["standard_rag"].abs().max())
    assert int(logits["standard_cag"].argmax()) == int(logits["standard_rag"].argmax())


def test_an_index_without_documents_is_no_index_to_ask(index_folder, backbone):
    with Catalogue.open(index_folder / CATALOGUE) as catalogue:
        settings = published_settings(catalogue, catalogue.generation, "here")
        store = DiskStore(index_folder / BLOCKS)
        publish(index_folder, catalogue, catalogue.embedder(), settings, store, [], [])
    with pytest.raises(InputError, match="the index is empty"):
        CoinRAG(Index.open(index_folder, model=backbone))
