"""A run asks every question once, and its scores are those of its questions."""

from __future__ import annotations

import os
import statistics
from dataclasses import asdict, replace

import pytest
import torch

from coinkv.errors import InputError
from coinkv.evaluate.configuration import Configuration
from coinkv.evaluate.dataset import Passage, read_set
from coinkv.evaluate.indexes import index_of
from coinkv.evaluate.metrics import exact_match, token_f1
from coinkv.evaluate.run import Asking, run
from coinkv.methods.registry import METHODS
from coinkv.rag.ask import CoinRAG
from coinkv.rag.index import Index
from fixtures.near_chunks import NearChunks
from fixtures.village_questions import PASSAGES, write_rows
from small_corpus import block_files
from tiny_adapters import save_tiny_adapter

SHORT = Asking(answer_tokens=6)
COINRAG = Configuration("coinrag", 2, 4)
CAG = Configuration("standard_cag", 2, None)


@pytest.fixture(scope="module")
def village_set(tmp_path_factory):
    return read_set(write_rows(tmp_path_factory.mktemp("set") / "village.jsonl"))


@pytest.fixture
def own(village_set, options, tmp_path):
    """An index of the set's own passages."""
    return index_of(village_set, tmp_path, "sentences", options, None, lambda *_: None)


@pytest.fixture
def askings(monkeypatch):
    """Every question taken to its first token, with what reading cost and took."""
    seen = []
    first_token = CoinRAG.first_token

    def noted(self, question, **room):
        first = first_token(self, question, **room)
        counts = first.context.counts
        seen.append((question, counts.missing + counts.damaged, first.clock.total_seconds))
        return first

    monkeypatch.setattr(CoinRAG, "first_token", noted)
    return seen


def all_gold(village_set):
    """The first question, as if every passage was needed to answer it."""
    passages = tuple(Passage(title, text, True) for title, text in PASSAGES.items())
    return replace(village_set.rows[0], passages=passages)


def repeatable(row):
    """What is the same whenever a question is asked; a file's header is read but once."""
    return {name: value for name, value in row.items() if name not in ("ttft_ms", "bytes_read")}


def test_the_scores_are_the_means_over_the_questions(own, village_set):
    facts = run(own, village_set.rows, COINRAG, SHORT)
    answered = facts["per_question"]
    assert [row["id"] for row in answered] == [row.id for row in village_set.rows]
    for name in ("f1", "exact_match", "len_tokens", "kv_bytes", "layer_tokens", "flops"):
        assert facts[name] == pytest.approx(statistics.mean(row[name] for row in answered))
    for name in ("evidence_recall", "answer_recall"):
        values = [row[name] for row in answered if row[name] is not None]
        assert facts[name] == pytest.approx(statistics.mean(values))
    times = torch.tensor([row["ttft_ms"] for row in answered], dtype=torch.float64)
    assert facts["ttft_ms"]["mean"] == pytest.approx(float(times.mean()))
    assert facts["ttft_ms"]["p99"] == pytest.approx(float(times.quantile(0.99)))
    assert facts["questions"] == len(village_set.rows)
    assert facts["decode_tokens_per_second"] > 0


def test_each_answer_is_judged_by_its_own_question(own, village_set):
    answered = run(own, village_set.rows, COINRAG, SHORT)["per_question"]
    for fact, row in zip(answered, village_set.rows, strict=True):
        assert fact["f1"] == token_f1(fact["answer"], row.answers)
        assert fact["exact_match"] == exact_match(fact["answer"], row.answers)
        assert fact["answer_tokens"] <= SHORT.answer_tokens
    assert answered[-1]["answer_recall"] is None  # its answer is yes


def test_evidence_is_recalled_as_far_as_it_stands_in_the_context(own, village_set):
    rows = [all_gold(village_set)]
    whole = run(own, rows, replace(CAG, k_chunks=own.vectors.chunks), SHORT)
    assert (whole["evidence_recall"], whole["answer_recall"]) == (1, 1)
    for configuration in (replace(CAG, k_chunks=1), Configuration("coinrag", 1, 1)):
        assert run(own, rows, configuration, SHORT)["evidence_recall"] == 1 / len(PASSAGES)


def test_a_run_says_what_it_was_made_with(own, village_set, monkeypatch):
    monkeypatch.setattr("sys.argv", ["/bin/coinkv", "eval", "--index", "my index"])
    facts = run(own, village_set.rows[:1], COINRAG, replace(SHORT, seed=7))
    assert facts["kind"] == "answers"
    assert Configuration.of_row(facts) == COINRAG
    assert (facts["fingerprint"], facts["model"]) == (own.backbone.fingerprint, own.backbone.name)
    assert (facts["device"], facts["seed"]) == ("cpu", 7)
    assert facts["settings"] == asdict(own.settings)
    assert (facts["adapter_digest"], facts["adapter_scope"]) == (None, None)
    assert {"coinkv", "python", "torch", "transformers", "threads"} <= set(facts["versions"])
    assert facts["command"] == "coinkv eval --index 'my index'"
    assert "note" not in facts
    assert "untrained" in run(own, village_set.rows[:1], Configuration("kvlink", 1, None))["note"]


@pytest.mark.parametrize("method", ["standard_rag", "coinrag", "coinrag_cacheblend", "kvlink"])
def test_a_batch_gives_the_answers_of_one_at_a_time(own, village_set, method):
    nuggets = 4 if method.startswith("coinrag") else None
    configuration = Configuration(method, 2, nuggets)
    alone, *together = (
        run(own, village_set.rows, configuration, Asking(answer_tokens=12, batch=batch))
        for batch in (1, 4, 99)
    )
    expected = [repeatable(row) for row in alone["per_question"]]
    assert len({row["answer"] for row in expected}) > 1
    for facts in together:
        assert [repeatable(row) for row in facts["per_question"]] == expected


@pytest.mark.parametrize("harm", ["missing", "damaged"])
def test_a_question_whose_blocks_had_to_be_made_is_timed_when_asked_again(
    own, village_set, askings, harm
):
    for path in block_files(own.folder):
        path.unlink() if harm == "missing" else os.truncate(path, 100)
    configuration = replace(CAG, k_chunks=1)
    answered = run(own, village_set.rows, configuration, SHORT)["per_question"]
    _warm_up, *asked = askings
    assert sum(made for _, made, _ in asked) >= len(PASSAGES) - 1
    assert len(asked) == len(village_set.rows) + sum(made for _, made, _ in asked)
    last = {question: (made, seconds) for question, made, seconds in asked}
    assert [made for made, _ in last.values()] == [0] * len(village_set.rows)
    seconds = [last[row.question][1] for row in village_set.rows]
    assert [row["ttft_ms"] for row in answered] == [round(1000 * s, 3) for s in seconds]


def test_questions_whose_blocks_are_there_are_asked_once_after_a_warm_up(own, village_set, askings):
    told = []
    run(own, village_set.rows, COINRAG, replace(SHORT, batch=4), lambda *done: told.append(done))
    questions = [row.question for row in village_set.rows]
    assert [question for question, _, _ in askings] == [questions[0], *questions]
    assert told == [(4, 6), (6, 6)]


def test_what_a_method_left_out_of_the_context_is_no_evidence(own, village_set, monkeypatch):
    monkeypatch.setitem(METHODS, "near_chunks", NearChunks)
    rows, everything = [all_gold(village_set)], replace(CAG, k_chunks=own.vectors.chunks)
    first = SHORT.asker(own, everything).first_token(rows[0].question, answer_tokens=1)
    best = first.retrieval.chunks[0].score

    def with_similarity(least):
        chosen = replace(everything, method="near_chunks", options=(("similarity", least),))
        return run(own, rows, chosen, SHORT)

    every, one, none = map(with_similarity, (-1.0, best, 1.1))
    cag = run(own, rows, everything, SHORT)
    assert repeatable(every["per_question"][0]) == repeatable(cag["per_question"][0])
    recalls = [facts["evidence_recall"] for facts in (every, one, none)]
    assert recalls == [1, 1 / len(PASSAGES), 0]
    assert none["answer_recall"] == 0
    assert none["len_tokens"] == len(own.bench.prompt.prefix_ids)


def test_an_adapter_answers_in_its_scope_and_is_known_by_its_content(
    own, village_set, model_folder, tmp_path
):
    folder = save_tiny_adapter(model_folder, tmp_path / "lora")
    plain = run(own, village_set.rows, CAG, SHORT)
    found = {}
    for scope in ("live", "all"):
        asking = replace(SHORT, adapter=folder, adapter_scope=scope)
        assert asking.adapter_name == "lora"
        found[scope] = run(own, village_set.rows, replace(CAG, adapter="lora"), asking)
        assert found[scope]["adapter_scope"] == scope
        assert found[scope]["fingerprint"] == plain["fingerprint"]
    assert found["live"]["adapter_digest"] == found["all"]["adapter_digest"] is not None
    runs = (plain, *found.values())
    answers = [tuple(row["answer"] for row in facts["per_question"]) for facts in runs]
    assert len(set(answers)) == 3


def test_what_cannot_be_asked_is_refused(own, village_set, tmp_path):
    rows = village_set.rows
    for configuration, asking, says in (
        (Configuration("magic", 1, None), SHORT, "no method is called 'magic'"),
        (replace(CAG, options=(("tokens", 3),)), SHORT, "no option 'tokens'"),
        (replace(CAG, k_chunks=99), SHORT, "k_chunks is 99"),
        (replace(COINRAG, k_nuggets=0), SHORT, "k_nuggets is 0"),
        (CAG, replace(SHORT, adapter=tmp_path / "none"), "no such adapter folder"),
        (CAG, replace(SHORT, answer_tokens=2000), "the context window"),
    ):
        with pytest.raises(InputError, match=says):
            run(own, rows, configuration, asking)
    with pytest.raises(InputError, match="no questions"):
        run(own, [], CAG, SHORT)
    with pytest.raises(InputError, match="no answers"):
        run(own, [replace(rows[0], answers=())], CAG, SHORT)
    for wrong in ({"batch": 0}, {"answer_tokens": 0}):
        with pytest.raises(InputError, match="use 1 or more"):
            Asking(**wrong)


def test_an_index_that_cannot_keep_what_it_makes_is_no_obstacle(own, village_set, monkeypatch):
    index = Index.open(own.folder, model=own.backbone)
    for path in block_files(own.folder):
        path.unlink()
    monkeypatch.setattr(type(index.bench.blocks), "write", lambda *_: 0)
    facts = run(index, village_set.rows[:2], CAG, SHORT)
    assert facts["bytes_read"] == 0
    assert facts["questions"] == 2
