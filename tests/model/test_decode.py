"""Decoding: the tokens transformers would choose, and text that is certain when it is given."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import coinkv.model.decode as decoding
from coinkv.errors import InputError
from coinkv.model.decode import Sampling, _TextWriter, decode
from coinkv.model.fill import LiveCache, fill
from coinkv.model.load import load
from tiny_models import VOCABULARY

PROMPT = "Who counted the sheep on the hill? Marta took the lamp. Answer:"


@pytest.fixture(scope="module")
def default_backbone():
    return load(device="cpu")


def filled(backbone, ids, room=40):
    cache = LiveCache.for_backbone(backbone, len(ids) + room)
    return cache, fill(backbone, cache, ids, torch.arange(len(ids)))


def answer(backbone, sampling, ids=None, room=40):
    ids = backbone.tokenize(PROMPT).ids if ids is None else ids
    cache, logits = filled(backbone, ids, room)
    return list(decode(backbone, cache, logits, sampling))


def tokens(pieces):
    return [piece.token_id for piece in pieces if piece.token_id is not None]


def text(pieces):
    return "".join(piece.text for piece in pieces)


def generated(backbone, ids, n):
    """What transformers' own greedy search makes of a prompt, without the end token."""
    with torch.no_grad():
        out = backbone.model.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.int64),
            max_new_tokens=n,
            do_sample=False,
            pad_token_id=1,
        )
    made = out[0, len(ids) :].tolist()
    return made[:-1] if made[-1] in backbone.end_token_ids else made


def one_hot(token_id):
    logits = torch.full((1, VOCABULARY), -math.inf)
    logits[0, token_id] = 0.0
    return logits


def spoken(backbone, monkeypatch, token_ids, sampling):
    """Pieces when the model says exactly these tokens, whatever the sampling."""
    script = iter(token_ids[1:])
    monkeypatch.setattr(decoding, "fill", lambda *_args, **_kwargs: one_hot(next(script)))
    cache = LiveCache.for_backbone(backbone, 400)
    cache.length = 1
    cache.positions[0] = 0
    return list(decode(backbone, cache, one_hot(token_ids[0]), sampling))


def said(backbone, monkeypatch, words, **options):
    """Pieces when the model says these words and then ends."""
    end = min(backbone.end_token_ids)
    script = (*backbone.tokenize(words).ids, end)
    return spoken(backbone, monkeypatch, script, Sampling(**{"max_tokens": 300, **options}))


@pytest.mark.parametrize(
    "name", ["llama", "qwen3", "gemma3-two-thetas", "gpt-neox", "glm-interleaved-partial", "phi3"]
)
def test_greedy_decoding_equals_transformers_generate(tiny_backbone, name):
    backbone = tiny_backbone(name)
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randint(2, VOCABULARY, (25,), generator=generator).tolist()
        ours = tokens(answer(backbone, Sampling(max_tokens=20), ids))
        assert ours == generated(backbone, ids, 20)


def test_greedy_decoding_of_the_default_model_equals_transformers_generate(default_backbone):
    backbone = default_backbone
    ids = backbone.tokenize("The capital of France is").ids
    pieces = answer(backbone, Sampling(max_tokens=20), ids)
    assert tokens(pieces) == generated(backbone, ids, 20)
    assert text(pieces) == backbone.tokenizer.decode(tokens(pieces), skip_special_tokens=True)


def test_temperature_zero_is_greedy_whatever_the_seed_and_top_p(tiny_backbone):
    backbone = tiny_backbone("llama")
    greedy = answer(backbone, Sampling(max_tokens=15))
    assert len(set(tokens(greedy))) > 3
    assert answer(backbone, Sampling(max_tokens=15, temperature=0, seed=5, top_p=0.3)) == greedy


def test_a_seed_repeats_a_sample_and_another_seed_makes_another(tiny_backbone):
    backbone = tiny_backbone("llama")
    samples = [
        tokens(answer(backbone, Sampling(max_tokens=15, temperature=1.5, seed=seed)))
        for seed in (1, 1, 2, 3)
    ]
    assert samples[0] == samples[1]
    assert len({tuple(sample) for sample in samples}) == 3


def test_a_seed_leaves_the_global_random_state_alone(tiny_backbone):
    before = torch.get_rng_state()
    answer(tiny_backbone("llama"), Sampling(max_tokens=5, temperature=1.0, seed=3))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    "sampling",
    [
        {"top_p": 1e-9, "temperature": 1.0},
        {"temperature": 1e-6},
        {"temperature": 1e-300},
        {"temperature": 5e-324, "top_p": 0.5},
    ],
)
def test_a_tiny_top_p_or_temperature_is_greedy(tiny_backbone, sampling):
    backbone = tiny_backbone("llama")
    greedy = tokens(answer(backbone, Sampling(max_tokens=12)))
    assert tokens(answer(backbone, Sampling(max_tokens=12, seed=0, **sampling))) == greedy


def drawn(backbone, probabilities, draws=400, **options):
    """How often each token comes first when these are the model's probabilities."""
    logits = torch.full((1, VOCABULARY), -math.inf)
    for token_id, probability in probabilities.items():
        logits[0, token_id] = math.log(probability)
    cache, _ = filled(backbone, [5, 6])
    count: Counter[int | None] = Counter()
    for seed in range(draws):
        sampling = Sampling(max_tokens=1, seed=seed, **options)
        count.update(piece.token_id for piece in decode(backbone, cache, logits, sampling))
    return {token_id: n / draws for token_id, n in count.items()}


@pytest.mark.parametrize(
    ("top_p", "kept"),
    [
        (0.49, {10: 1.0}),
        (0.51, {10: 0.5 / 0.8, 20: 0.3 / 0.8}),
        (0.79, {10: 0.5 / 0.8, 20: 0.3 / 0.8}),
        (0.81, {10: 0.5 / 0.95, 20: 0.3 / 0.95, 30: 0.15 / 0.95}),
        (1.0, {10: 0.5, 20: 0.3, 30: 0.15, 40: 0.05}),
    ],
)
def test_top_p_keeps_the_smallest_set_that_reaches_it(tiny_backbone, top_p, kept):
    probabilities = {40: 0.05, 10: 0.5, 30: 0.15, 20: 0.3}
    shares = drawn(tiny_backbone("llama"), probabilities, temperature=1.0, top_p=top_p)
    assert shares.keys() == kept.keys()
    assert shares == pytest.approx(kept, abs=0.08)


def test_temperature_divides_the_logits(tiny_backbone):
    shares = drawn(tiny_backbone("llama"), {10: 0.8, 20: 0.2}, temperature=2.0)
    sharper = math.sqrt(0.8) / (math.sqrt(0.8) + math.sqrt(0.2))  # 0.667
    assert shares[10] == pytest.approx(sharper, abs=0.07)


def test_no_tokens_wanted_gives_no_text_and_no_token(tiny_backbone):
    (piece,) = answer(tiny_backbone("llama"), Sampling(max_tokens=0))
    assert (piece.text, piece.token_id, piece.finish_reason) == ("", None, "length")


def test_only_the_last_piece_has_a_finish_reason_and_the_limit_is_exact(tiny_backbone):
    pieces = answer(tiny_backbone("llama"), Sampling(max_tokens=7))
    assert len(tokens(pieces)) == 7
    assert [piece.finish_reason for piece in pieces] == [None] * 6 + ["length"]


def test_any_of_several_end_tokens_ends_an_answer_and_is_not_text(tiny_backbone):
    backbone = tiny_backbone("llama")
    greedy = tokens(answer(backbone, Sampling(max_tokens=15)))
    at = next(n for n in range(3, 15) if greedy[n] not in greedy[:n])
    ended = replace(backbone, end_token_ids=frozenset({1, greedy[at]}))
    pieces = answer(ended, Sampling(max_tokens=15))
    assert tokens(pieces) == greedy[:at]
    assert pieces[-1].finish_reason == "stop"
    assert text(pieces) == backbone.detokenize(greedy[:at])


def test_the_pieces_joined_are_the_tokenizers_own_decoding(tiny_backbone):
    backbone = tiny_backbone("llama")
    for seed in range(5):
        pieces = answer(backbone, Sampling(max_tokens=30, temperature=3.0, seed=seed))
        whole = backbone.tokenizer.decode(tokens(pieces), skip_special_tokens=True)
        assert text(pieces) == whole


def test_characters_of_several_tokens_come_whole(tiny_backbone, monkeypatch):
    backbone = tiny_backbone("llama")
    words = "a 🙂é 漢字 👩‍🚀!"
    pieces = said(backbone, monkeypatch, words)
    assert len(pieces) > len(words)
    assert text(pieces) == words
    assert "\ufffd" not in text(pieces)
    assert {p.text for p in pieces if p.text} >= {"🙂", "é", "漢"}


def test_half_a_character_at_the_limit_is_still_given(tiny_backbone, monkeypatch):
    backbone = tiny_backbone("llama")
    half = backbone.tokenize("x🙂").ids[:3]
    pieces = spoken(backbone, monkeypatch, half, Sampling(max_tokens=3))
    assert text(pieces) == backbone.tokenizer.decode(half)
    assert text(pieces).startswith("x\ufffd")


def test_a_stop_string_over_several_tokens_is_cut_and_its_beginning_never_given(
    tiny_backbone, monkeypatch
):
    backbone = tiny_backbone("llama")
    pieces = said(backbone, monkeypatch, "14 sheep\nQuestion: who?", stop=("\nQuestion:",))
    assert text(pieces) == "14 sheep"
    assert pieces[-1].finish_reason == "stop"
    assert len(tokens(pieces)) < len(backbone.tokenize("14 sheep\nQuestion: who?").ids)


def test_what_only_began_like_a_stop_string_is_given_after_all(tiny_backbone, monkeypatch):
    backbone = tiny_backbone("llama")
    for ending in ("\nQuest", "\nQuestions: none"):
        pieces = said(backbone, monkeypatch, f"sheep{ending}", stop=("\nQuestion:",))
        assert text(pieces) == f"sheep{ending}"


def test_the_stop_string_that_is_complete_first_wins(tiny_backbone, monkeypatch):
    backbone = tiny_backbone("llama")
    pieces = said(backbone, monkeypatch, "one. two! three", stop=("!", "three", "."))
    assert text(pieces) == "one"
    pieces = said(backbone, monkeypatch, "the sheep", stop=("e sheep", "h"))
    assert text(pieces) == "t"


def test_the_beginning_of_a_stop_string_is_held_while_half_a_character_follows(
    tiny_backbone, monkeypatch
):
    backbone = tiny_backbone("llama")
    assert len(backbone.tokenize("é").ids) == 2
    assert text(said(backbone, monkeypatch, "caféine", stop=("fé",))) == "ca"


ANSWERS = st.text(alphabet="ab é🙂\n", min_size=1, max_size=12)


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(words=ANSWERS, stop=st.lists(st.text("ab é🙂\n", min_size=1, max_size=4), max_size=3))
def test_what_is_given_at_any_time_is_a_beginning_of_the_cut_answer(
    tiny_backbone, monkeypatch, words, stop
):
    pieces = said(tiny_backbone("llama"), monkeypatch, words, stop=tuple(stop))
    whole = [(words.find(s) + len(s), words.find(s)) for s in stop if s in words]
    cut = min(whole)[1] if whole else len(words)
    assert text(pieces) == words[:cut]
    for n in range(len(pieces)):
        assert words[:cut].startswith(text(pieces[:n]))


def test_a_full_context_window_ends_the_answer_without_an_error(tiny_backbone):
    backbone = replace(tiny_backbone("llama"), end_token_ids=frozenset())
    ids = [5 + n % 300 for n in range(500)]
    pieces = answer(backbone, Sampling(max_tokens=100), ids, room=200)
    assert len(tokens(pieces)) == 13  # twelve fill the window, one more is chosen
    assert pieces[-1].finish_reason == "length"


def test_the_window_counts_positions_not_slots(tiny_backbone):
    backbone = replace(tiny_backbone("llama"), end_token_ids=frozenset())
    cache = LiveCache.for_backbone(backbone, 200)
    logits = fill(backbone, cache, [5, 6, 7], torch.arange(506, 509))
    pieces = list(decode(backbone, cache, logits, Sampling(max_tokens=100)))
    assert len(tokens(pieces)) == 4
    assert int(cache.positions.max()) == backbone.context_length - 1


def test_a_full_cache_ends_the_answer_without_an_error(tiny_backbone):
    backbone = replace(tiny_backbone("llama"), end_token_ids=frozenset())
    pieces = answer(backbone, Sampling(max_tokens=100), [5, 6, 7], room=4)
    assert len(tokens(pieces)) == 5
    assert pieces[-1].finish_reason == "length"


def test_an_answer_adds_its_tokens_to_the_cache_and_can_be_continued(tiny_backbone):
    backbone = tiny_backbone("llama")
    ids = list(backbone.tokenize(PROMPT).ids)
    whole = tokens(answer(backbone, Sampling(max_tokens=12), ids))
    cache, logits = filled(backbone, ids)
    first = tokens(decode(backbone, cache, logits, Sampling(max_tokens=5)))
    assert cache.length == len(ids) + 4
    logits = fill(backbone, cache, first[-1:], torch.tensor([cache.length]))
    assert first + tokens(decode(backbone, cache, logits, Sampling(max_tokens=7))) == whole


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_tokens": -1}, "max_tokens is -1"),
        ({"temperature": -0.1}, "temperature is -0.1"),
        ({"temperature": math.nan}, "temperature is nan"),
        ({"temperature": math.inf}, "temperature is inf"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"top_p": 1.01}, "top_p is 1.01"),
        ({"top_p": math.nan}, "top_p is nan"),
        ({"stop": ("a", "")}, "a stop string is empty"),
        ({"stop": "END"}, "stop is one string"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 2**64}, "seed is 18446744073709551616"),
    ],
)
def test_values_out_of_range_are_input_errors(values, message):
    with pytest.raises(InputError, match=message) as error:
        Sampling(**values)
    assert error.value.hint


def test_the_largest_seed_works(tiny_backbone):
    sampling = Sampling(max_tokens=2, temperature=1.0, seed=2**64 - 1)
    assert len(answer(tiny_backbone("llama"), sampling)) == 2


def test_white_space_around_a_trimmed_text_is_left_out():
    texts = ["\n", " ", " In", " 1843", " \n", "by", " ", "\n"]
    vocabulary = SimpleNamespace(detokenize=lambda ids: "".join(texts[each] for each in ids))
    writer = _TextWriter(vocabulary, Sampling(trimmed=True))
    given = [writer.add(token) for token in range(len(texts))]
    assert given == ["", "", "In", " 1843", "", " \nby", "", ""]
    assert writer.rest() == ""
