"""A timing round times every configuration on every question, in turn and in shuffled order."""

from __future__ import annotations

import pytest

from coinkv.errors import InputError
from coinkv.evaluate.configuration import Configuration
from coinkv.evaluate.run import Asking
from coinkv.evaluate.timing import STAGES, timing_round
from coinkv.rag.ask import CoinRAG
from coinkv.rag.index import Index
from small_corpus import QUESTIONS, block_files

CONFIGURATIONS = (
    Configuration("standard_rag", 1, None),
    Configuration("standard_cag", 1, None),
    Configuration("coinrag", 2, 3),
)


@pytest.fixture
def askers(index):
    return {each: Asking().asker(index, each) for each in CONFIGURATIONS}


@pytest.fixture
def asked(monkeypatch):
    """Method, question, blocks made and seconds of everything asked."""
    seen = []
    first_token = CoinRAG.first_token

    def noted(self, question, **room):
        first = first_token(self, question, **room)
        missing = first.context.counts.missing
        seen.append((self.method.name, question, missing, first.clock.total_seconds))
        return first

    monkeypatch.setattr(CoinRAG, "first_token", noted)
    return seen


def turns(asked):
    """The questions in order with the methods in the order they were asked, warm-up left out."""
    rest = asked[len(CONFIGURATIONS) :]
    groups = [rest[at : at + 3] for at in range(0, len(rest), 3)]
    assert all(len({question for _, question, *_ in group}) == 1 for group in groups)
    return [(group[0][1], tuple(method for method, *_ in group)) for group in groups]


def test_every_configuration_is_asked_every_question_once_and_all_in_turn(askers, asked):
    told = []
    timing_round(askers, QUESTIONS, 0, 0, lambda *done: told.append(done))
    methods = {each.method for each in CONFIGURATIONS}
    assert {method for method, *_ in asked[:3]} == methods  # each is warmed up first
    in_turn = turns(asked)
    assert sorted(question for question, _ in in_turn) == sorted(QUESTIONS)
    assert all(set(order) == methods for _, order in in_turn)
    assert len({order for _, order in in_turn}) > 1
    assert told == [(done, len(QUESTIONS)) for done in range(1, len(QUESTIONS) + 1)]


def test_the_order_is_that_of_seed_and_round(askers, asked):
    orders = []
    for number, seed in ((0, 0), (0, 0), (1, 0), (0, 1)):
        asked.clear()
        timing_round(askers, QUESTIONS, number, seed)
        orders.append(turns(asked))
    assert orders[0] == orders[1]
    questions = [tuple(question for question, _ in order) for order in orders]
    assert len(set(questions)) == 3
    assert tuple(QUESTIONS) not in questions


def test_a_row_holds_a_time_a_question_and_stages_that_add_up(askers, asked, index):
    rows = timing_round(askers, QUESTIONS, 4, 9)
    for each, row in zip(CONFIGURATIONS, rows, strict=True):
        assert Configuration.of_row(row) == each
        assert (row["kind"], row["round"], row["seed"]) == ("timing", 4, 9)
        assert row["fingerprint"] == index.backbone.fingerprint
        taken = [seconds for method, *_, seconds in asked[3:] if method == each.method]
        assert row["ttft_ms"] == [round(1000 * seconds, 3) for seconds in taken]
        assert tuple(row["stages_ms"]) == STAGES
        mean = sum(row["ttft_ms"]) / len(row["ttft_ms"])
        assert sum(row["stages_ms"].values()) == pytest.approx(mean, abs=0.001)


def test_a_question_whose_blocks_were_missing_is_timed_on_the_second_asking(
    index_folder, backbone, asked
):
    index = Index.open(index_folder, model=backbone)
    for path in block_files(index_folder):
        path.unlink()
    each = CONFIGURATIONS[1]
    (row,) = timing_round({each: Asking().asker(index, each)}, QUESTIONS, 0, 0)
    made = [missing for _, _, missing, _ in asked]
    assert made[0] == 1  # the warm-up
    assert sum(made[1:]) >= 3
    assert len(asked) == 1 + len(QUESTIONS) + sum(made[1:])
    last = {question: seconds for _, question, missing, seconds in asked[1:] if not missing}
    assert row["ttft_ms"] == [round(1000 * seconds, 3) for seconds in last.values()]


def test_no_questions_are_refused(askers):
    with pytest.raises(InputError, match="no questions"):
        timing_round(askers, [], 0, 0)
