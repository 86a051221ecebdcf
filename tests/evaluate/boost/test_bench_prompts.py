"""Texts, preambles and layouts: what is asked, the same on every machine."""

from __future__ import annotations

import random

import pytest
from bench_texts import made_set
from hypothesis import given
from hypothesis import strategies as st

from coinkv.errors import InputError
from coinkv.evaluate.boost.layouts import LAYOUTS, sittings
from coinkv.evaluate.boost.preambles import LONGEST, preamble
from coinkv.evaluate.boost.prompts import _rendered
from coinkv.evaluate.boost.texts import asked_texts, spread_over_lengths
from coinkv.evaluate.dataset import EvalRow, EvalSet
from coinkv.model.prompt import INSTRUCTIONS
from tiny_models import make_tokenizer

LEAD = "It is"


def words(text):
    return len(text.split())


def made(layout, texts, model, room, seed):
    return sittings(layout, texts, model, lead=LEAD, room=room, seed=seed)


@pytest.fixture
def texts():
    return asked_texts(made_set(), words)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_seed_gives_the_same_prompts_again_and_another_seed_others(layout, texts, model):
    again = made(layout, texts, model, 8, 1)
    assert again == made(layout, texts, model, 8, 1)
    other = made(layout, texts, model, 8, 2)
    assert (other == again) == (layout == "document_first")


def test_document_first_differs_only_behind_the_text(texts, model):
    for text, sitting in zip(texts, made("document_first", texts, model, 8, 0), strict=True):
        before, shown, _ = sitting.prompts[0].prompt.partition(text.text.strip())
        assert len(sitting.prompts) == 3
        assert all(asked.prompt.startswith(before + shown) for asked in sitting.prompts)
        for asked in sitting.prompts:
            assert asked.row.question in asked.prompt.removeprefix(before + shown)


def test_every_preamble_of_a_sitting_is_another_and_the_text_behind_it_stays(texts, model):
    for seed in range(5):
        for sitting in made("varying_preamble", texts, model, 8, seed):
            shown = next(t for t in texts if t.rows[0] is sitting.prompts[0].row)
            parts = [asked.prompt.partition(shown.text.strip()) for asked in sitting.prompts]
            assert all(found for _, found, _ in parts)
            assert len({before for before, _, _ in parts}) == len(parts)


def test_two_documents_stand_in_both_orders_and_are_asked_in_turn(texts, model):
    both = made("two_documents", texts, model, 8, 0)
    assert len(both) == 2
    for (one, two), sitting in zip([texts[:2], texts[2:]], both, strict=True):
        ids = [asked.row.id for asked in sitting.prompts]
        assert ids == [row.id for pair in zip(one.rows, two.rows, strict=True) for row in pair]
        first = [a.prompt.index(one.title) < a.prompt.index(two.title) for a in sitting.prompts]
        assert sum(first) == 3


def test_the_last_of_an_odd_number_of_texts_is_left_out_of_pairs(texts, model):
    (sitting,) = made("two_documents", texts[:3], model, 8, 0)
    assert len(sitting.prompts) == 6
    with pytest.raises(InputError, match="two texts"):
        made("two_documents", texts[:1], model, 8, 0)


def test_a_prompt_that_leaves_no_room_for_the_answer_is_refused_by_name(texts, model):
    longest = max(s.prompts[0].tokens for s in made("document_first", texts, model, 1, 0))
    with pytest.raises(InputError, match=r"the prompt of t\d#\d and .* the context window"):
        made("document_first", texts, model, model.context_length - longest + 1, 0)


def test_the_counted_tokens_are_those_of_the_whole_prompt(texts, model):
    for sitting in made("varying_preamble", texts, model, 8, 0):
        for asked in sitting.prompts:
            assert asked.prompt.endswith("\nAnswer:It is")
            assert asked.tokens == model.count_tokens(asked.prompt) > words(asked.prompt)


@given(st.integers(0, 10**6))
def test_a_preamble_has_1_to_200_tokens_of_whole_words(seed):
    text = preamble(random.Random(seed), words)
    assert 1 <= words(text) <= LONGEST
    assert text == text.strip() == preamble(random.Random(seed), words)
    assert "{" not in text


def test_preambles_are_short_and_long():
    lengths = [words(preamble(random.Random(seed), words)) for seed in range(200)]
    assert min(lengths) < 10
    assert max(lengths) > 150
    assert len(set(lengths)) > 80


def test_questions_are_gathered_by_the_text_they_share_in_their_order(texts):
    assert [[row.id for row in text.rows] for text in texts] == [
        [f"t{text}#{number}" for number in range(3)] for text in range(4)
    ]
    assert [text.tokens for text in texts] == sorted(text.tokens for text in texts)


def test_a_choice_of_texts_has_short_and_long_ones(texts):
    for seed in range(10):
        chosen = spread_over_lengths(texts, 2, 100, seed)
        assert chosen == spread_over_lengths(texts, 2, 100, seed)
        short, long = sorted(text.tokens for text in chosen)
        assert short in {t.tokens for t in texts[:2]}
        assert long in {t.tokens for t in texts[2:]}
    assert len({spread_over_lengths(texts, 2, 100, seed) for seed in range(10)}) > 1


def test_too_long_texts_are_left_out_and_too_few_are_an_error(texts):
    fitting = spread_over_lengths(texts, None, texts[1].tokens, 0)
    assert {text.title for text in fitting} == {"t0", "t1"}
    with pytest.raises(InputError, match="2 of 4 texts have at most"):
        spread_over_lengths(texts, 3, texts[1].tokens, 0)
    with pytest.raises(InputError, match="0 of 4 texts"):
        spread_over_lengths(texts, None, 1, 0)


def test_questions_without_text_or_answers_are_refused():
    with pytest.raises(InputError, match="no text it is about"):
        asked_texts(EvalSet("s", (EvalRow("a", "Why?", ("so",)),)), words)
    with pytest.raises(InputError, match="no answers"):
        asked_texts(EvalSet("s", (EvalRow("a", "Why?"),)), words)


CHAT = (
    "{% for m in messages %}[{{ m.role }}] {{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}" + CHAT


def test_a_prompt_is_the_models_template_up_to_the_assistants_turn():
    text = _rendered(make_tokenizer(chat_template=CHAT), "Why?", "tiny")
    assert text == f"[system] {INSTRUCTIONS}</s>[user] Why?</s>[assistant] "
    text = _rendered(make_tokenizer(chat_template=NO_SYSTEM), "Why?", "tiny")
    assert text == f"[user] {INSTRUCTIONS}\n\nWhy?</s>[assistant] "
    text = _rendered(make_tokenizer(), "Why?", "tiny")
    assert text == f"{INSTRUCTIONS}\n\nWhy?\nAnswer:"


def test_a_template_that_loses_the_message_is_refused():
    with pytest.raises(InputError, match="chat template"):
        _rendered(make_tokenizer(chat_template="{{ 'hello' }}"), "Why?", "tiny")


def test_a_prompt_begins_with_one_bos_where_the_tokenizer_adds_one():
    from tokenizers.processors import TemplateProcessing

    tokenizer = make_tokenizer()
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.bos_token_id)]
    )
    assert _rendered(tokenizer, "Why?", "tiny").startswith(f"<s>{INSTRUCTIONS}")
    tokenizer.chat_template = "<s>" + CHAT
    assert _rendered(tokenizer, "Why?", "tiny").count("<s>") == 1
