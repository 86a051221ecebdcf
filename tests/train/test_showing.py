"""A row is shown as a question answered behind its context; the loss is that of the answer."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from coinkv.errors import InputError
from coinkv.evaluate.dataset import EvalRow
from coinkv.train.showing import answer_ids, loss_sum
from training_rows import Parts, small_recipe


def shown_of(parts, rows):
    with parts.composer.learning(rows, 0, 0, 0) as shown:
        return shown


def parts_of(passages, objective="coinrag", **options):
    return Parts.of(passages, small_recipe(objective, raft=0.0, **options))


def test_an_answer_is_its_first_alternative_on_one_line_and_the_end_token(passages):
    backbone = passages.bench.backbone
    row = EvalRow("1", "Where?", ("In  New\nYork ", "NYC"))
    end = backbone.tokenizer.eos_token_id
    assert answer_ids(backbone, row) == (*backbone.tokenize("In New York").ids, end)


def test_the_end_token_is_one_that_ends_answers_or_none(passages):
    backbone, row = passages.bench.backbone, EvalRow("1", "Where?", ("Rome",))
    text = backbone.tokenize("Rome").ids
    assert answer_ids(replace(backbone, end_token_ids=frozenset({9, 7})), row) == (*text, 7)
    assert answer_ids(replace(backbone, end_token_ids=frozenset()), row) == text


@pytest.mark.parametrize("lead", ["", "It is in"])
def test_question_lead_and_answer_stand_behind_the_context(passages, data, lead):
    parts, row = parts_of(passages, answer_lead=lead), data.rows[0]
    (shown,) = shown_of(parts, [row])
    suffix = passages.bench.prompt.suffix_ids(row.row.question, lead)
    answer = answer_ids(passages.bench.backbone, row.row)
    assert shown.row.token_ids == (*suffix, *answer[:-1])
    assert tuple(shown.targets.tolist()) == answer
    held = len(shown.row.cached)
    assert shown.row.cached.positions.tolist() == list(range(held))
    assert shown.row.positions.tolist() == list(range(held, held + len(shown.row.token_ids)))


def test_a_question_stands_behind_the_longest_of_blocks_that_overlap(passages, data):
    parts = parts_of(passages, "turborag", options={"positions": "composite"})
    (shown,) = shown_of(parts, [data.rows[0]])
    assert len(shown.row.cached) > int(shown.row.cached.positions.max()) + 1
    assert int(shown.row.positions[0]) == int(shown.row.cached.positions.max()) + 1


def plain_loss(parts, row):
    """What transformers says of the whole text, and how many tokens the loss is of."""
    bench, model = parts.passages.bench, parts.learner.view.model
    evidence = parts.composer.evidence(row)
    chunks = [bench.blocks.tokens_of(c.content_hash).token_ids for c in evidence.chunks]
    answer = answer_ids(bench.backbone, row.row)
    ids = [
        *bench.prompt.prefix_ids,
        *(token for chunk in chunks for token in chunk),
        *bench.prompt.suffix_ids(row.row.question),
        *answer,
    ]
    labels = torch.tensor(ids)
    labels[: -len(answer)] = -100
    with torch.no_grad():
        output = model(torch.tensor([ids]), labels=labels[None])
    return float(output.loss) * len(answer), len(answer)


def test_the_loss_of_plain_rag_is_that_of_transformers(passages, data):
    parts, rows = parts_of(passages, "standard_rag"), data.rows[:3]
    with parts.composer.learning(rows, 0, 0, 0) as shown:
        loss = float(loss_sum(parts.learner.view, shown, checkpointing=False))
    plain = [plain_loss(parts, row) for row in rows]
    assert loss == pytest.approx(sum(each for each, _ in plain), rel=1e-5)
    assert sum(len(each.targets) for each in shown) == sum(tokens for _, tokens in plain)


def test_block_attention_shows_the_same_text_in_blocks_and_in_full(passages, data):
    parts, row = parts_of(passages, "block_attention"), data.rows[0]
    blocks, full = shown_of(parts, [row])
    assert len(full.row.cached) == 0
    assert len(full.row.token_ids) == len(blocks.row.cached) + len(blocks.row.token_ids)
    assert full.targets.tolist() == blocks.targets.tolist()
    with parts.composer.learning([row], 0, 0, 0) as shown:
        loss = float(loss_sum(parts.learner.view, shown[1:], checkpointing=False))
    assert loss == pytest.approx(plain_loss(parts, row)[0], rel=1e-5)


def test_link_tokens_are_live_and_get_the_embeddings_that_learn(passages, data):
    parts = parts_of(passages, "kvlink", options={"links": 2})
    (shown,) = shown_of(parts, [data.rows[0]])
    links = parts.learner.links.flatten(0, 1)
    assert sorted(shown.row.embeddings) == [0, 1, 2, 3]
    assert all(torch.equal(shown.row.embeddings[at], links[at]) for at in range(4))
    live = shown.row.positions[:4].tolist()
    assert not set(live) & set(shown.row.cached.positions.tolist())
    every = [*live, *shown.row.cached.positions.tolist()]
    assert sorted(every) == list(range(len(every)))


@pytest.mark.parametrize("through_cache", [False, True])
def test_link_embeddings_of_chunks_that_are_there_get_gradients(passages, data, through_cache):
    parts = parts_of(passages, "kvlink", options={"links": 2}, through_cache=through_cache)
    parts = parts.with_recipe(k_chunks=1)
    with parts.composer.learning(data.rows[:2], 0, 0, 0) as shown:
        loss_sum(parts.learner.view, shown, checkpointing=True).backward()
    gradient = parts.learner.links.grad
    assert bool((gradient[0] != 0).any(dim=-1).all())
    assert bool((gradient[1] == 0).all())


def length(shown):
    """Tokens of a row, context and answer included."""
    return len(shown.row.cached) + len(shown.row.token_ids) + 1


@pytest.mark.parametrize("objective", ["turborag", "standard_rag", "kvlink", "block_attention"])
def test_rows_too_long_lose_their_worst_chunks_and_then_are_left_out(passages, data, objective):
    parts, row = parts_of(passages, objective, k_chunks=3), data.rows[0]
    hashes = [chunk.content_hash for chunk in parts.composer.evidence(row).chunks]
    whole = shown_of(parts, [row])[0]
    tokens_of = passages.bench.blocks.tokens_of
    links = 5 if objective == "kvlink" else 0
    lengths = [len(tokens_of(name).token_ids) + links for name in hashes]
    assert length(shown_of(parts.with_recipe(max_length=length(whole)), [row])[0]) == length(whole)
    expected = length(whole)
    for dropped in (2, 1):
        parts = parts.with_recipe(max_length=expected - 1)
        expected -= lengths[dropped]
        assert {length(each) for each in shown_of(parts, [row])} == {expected}
    assert shown_of(parts.with_recipe(max_length=expected - 1), [row]) == []


def test_what_exceeds_the_context_window_counts_as_too_long(passages, data):
    parts = parts_of(passages, max_length=10_000)
    narrow = replace(parts.learner.view, context_length=10)
    learner = replace(parts.learner, view=narrow)
    shower = replace(parts.composer.shower, learner=learner)
    composer = replace(parts.composer, learner=learner, shower=shower)
    with composer.learning(data.rows[:2], 0, 0, 0) as shown:
        assert shown == []


def test_other_faults_of_a_method_do_not_pass_for_rows_too_long(passages, data, monkeypatch):
    parts = parts_of(passages)

    def broken(*_):
        raise InputError("something else")

    monkeypatch.setattr(type(parts.objective.method), "compose", broken)
    with (
        pytest.raises(InputError, match="something else"),
        parts.composer.learning(data.rows[:1], 0, 0, 0),
    ):
        pass
