"""Development scores are those of the same questions asked one by one with `decode`."""

from __future__ import annotations

import pytest
import torch

from coinkv.evaluate.metrics import exact_match, token_f1
from coinkv.model.clock import StageClock
from coinkv.model.decode import Sampling, decode
from coinkv.model.fill import fill
from coinkv.train.evaluation import Sums, dev_sums
from coinkv.train.showing import loss_sum
from training_rows import Parts, small_recipe


def trained(passages, data, folder, objective, **options):
    """A learner that answers some questions right and others not."""
    short = {"epochs": 14, "steps": 40, "checkpointing": False, "learning_rate": 2e-2}
    parts = Parts.of(passages, small_recipe(objective, **short, **options))
    parts.run(folder, data)
    return parts


def quiet(done, of):
    pass


def asked_alone(parts, row, answer_tokens):
    """One question as it is asked outside of training."""
    view, prompt = parts.learner.view, parts.passages.bench.prompt
    suffix = prompt.suffix_ids(row.row.question)
    clock = StageClock(view.synchronize)
    with parts.composer.bench() as bench:
        context = parts.objective.method.compose(
            bench, parts.composer.evidence(row), len(suffix) + answer_tokens, clock
        )
    links = parts.learner.links
    live, start = context.live, int(context.cache.positions.max()) + 1
    logits = fill(
        view,
        context.cache,
        (*live.token_ids, *suffix),
        torch.cat([live.positions, torch.arange(start, start + len(suffix))]),
        embeddings=dict(enumerate(links.detach().flatten(0, 1))) if links is not None else {},
    )
    pieces = decode(view, context.cache, logits, Sampling(answer_tokens, first_line=True))
    return "".join(piece.text for piece in pieces).strip()


@pytest.mark.parametrize(
    ("objective", "options"),
    [("coinrag", {}), ("kvlink", {}), ("standard_rag", {}), ("coinrag", {"through_cache": True})],
)
def test_answers_are_those_of_questions_asked_alone(passages, few, tmp_path, objective, options):
    parts = trained(passages, few, tmp_path, objective, **options)
    rows = few.rows  # more than are asked together
    sums = dev_sums(parts.composer, rows, answer_tokens=6, tell=quiet)
    answers = [asked_alone(parts, row, 6) for row in rows]
    right = [row.row.answers for row in rows]
    assert sums.f1 == pytest.approx(sum(map(token_f1, answers, right)))
    assert sums.exact == pytest.approx(sum(map(exact_match, answers, right)))
    assert sums.questions == len(rows)
    assert len(set(answers)) > 1
    assert sums.exact > 0


def test_the_loss_is_that_of_the_answers_tokens_without_noise(passages, data):
    parts = Parts.of(passages, small_recipe(raft=0.0))
    sums = dev_sums(parts.composer, data.held_out, answer_tokens=4, tell=quiet)
    with parts.composer.learning(data.held_out, 0, 0, 0) as shown:
        loss = float(loss_sum(parts.learner.view, shown, checkpointing=False))
    assert sums.loss == pytest.approx(loss, rel=1e-5)
    assert sums.tokens == sum(len(each.targets) for each in shown)
    noisy = Parts.of(passages, small_recipe(raft=1.0))
    again = dev_sums(noisy.composer, data.held_out, answer_tokens=4, tell=quiet)
    assert again == sums


def test_sums_of_parts_are_the_sums_of_all_and_progress_is_told(passages, data):
    parts, told = Parts.of(passages, small_recipe()), []
    rows = [*data.held_out, *data.rows[:2]]
    whole = dev_sums(
        parts.composer, rows, answer_tokens=4, tell=lambda *told_now: told.append(told_now)
    )
    assert told == [(8, 10), (10, 10)]
    halves = [
        dev_sums(parts.composer, rows[part::2], answer_tokens=4, tell=quiet) for part in (0, 1)
    ]
    added = sum(halves, Sums())
    assert (added.tokens, added.questions) == (whole.tokens, whole.questions)
    assert (added.loss, added.f1) == pytest.approx((whole.loss, whole.f1), rel=1e-5)


def test_rows_too_long_count_and_score_nothing(passages, data):
    parts = Parts.of(passages, small_recipe(max_length=5))
    sums = dev_sums(parts.composer, data.held_out, answer_tokens=4, tell=quiet)
    assert sums == Sums(questions=8)
    scores = sums.scores(1.5)
    assert (scores.loss, scores.f1, scores.questions, scores.seconds) == (0.0, 0.0, 8, 1.5)


def test_scores_are_means():
    sums = Sums(loss=6.0, tokens=4, f1=150.0, exact=100.0, questions=3)
    scores = sums.scores(2.0)
    assert (scores.loss, scores.f1) == (1.5, 50.0)
    assert scores.exact_match == pytest.approx(100 / 3)
    assert Sums().scores(0.0).to_dict() == {
        "loss": 0.0,
        "f1": 0.0,
        "exact_match": 0.0,
        "questions": 0,
        "seconds": 0.0,
    }


def test_asking_changes_no_weight_and_asks_for_no_gradient(passages, data):
    parts = Parts.of(passages, small_recipe("kvlink", through_cache=True))
    before = {name: weight.detach().clone() for name, weight in parts.learner.parameters.items()}
    dev_sums(parts.composer, data.held_out[:2], answer_tokens=4, tell=quiet)
    for name, weight in parts.learner.parameters.items():
        assert torch.equal(weight, before[name])
        assert weight.grad is None
