"""Condensing: a follow-up becomes a question of its own, and nothing is made up on the way."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coinkv.boost.engine import KVBoost
from coinkv.errors import BusyError, InputError
from coinkv.model.decode import Sampling
from coinkv.model.load import load
from coinkv.rag.condense import REWRITE_TOKENS, condense, greedy, refers
from tiny_models import SUPPORTED, make_tokenizer, save_tiny_model

CHATML = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
FOLLOW_UPS = Path(__file__).parents[2] / "benchmarks" / "follow_ups.jsonl"
WABOT = ("In what year was WABOT-1 completed?", "It was completed in 1972.")


def chat(*texts, system=None):
    """Messages of user and assistant in turn; the user has the last word."""
    roles = ("user", "assistant")
    turns = [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)]
    return [*([{"role": "system", "content": system}] if system else []), *turns]


def saying(answer):
    """A model that says so, and what it was asked."""

    def generate(messages, max_tokens):
        generate.asked.append((messages, max_tokens))
        return answer

    generate.asked = []
    return generate


@pytest.mark.parametrize("mode", ["auto", "model", "join", "off"])
def test_a_first_question_is_asked_as_it_is_in_every_mode(mode):
    generate = saying("Something else?")
    for messages in (chat("  And it? \n"), chat("And it?", system="Be brief, WABOT-1.")):
        assert condense(messages, mode, generate=generate) == "And it?"
    assert generate.asked == []


def test_off_takes_the_last_message_only():
    assert condense(chat(*WABOT, "Which university built it?"), "off") == (
        "Which university built it?"
    )


def test_the_last_message_of_the_user_asks_even_if_another_comes_behind():
    messages = [*chat(*WABOT, "Which university built it?"), {"role": "assistant", "content": "W"}]
    assert condense(messages, "off") == "Which university built it?"


@pytest.mark.parametrize(
    ("turns", "joined"),
    [
        ((*WABOT, "Which university was it built by?"), "was it built by? (WABOT-1)"),
        ((*WABOT, "Which university built it?"), f"built it? ({WABOT[0]})"),
        ((*WABOT, "And in which years was WABOT-2 completed?"), f"completed? ({WABOT[0]})"),
        (
            ("Who wrote it?", "Philip K. Dick wrote it.", "Which film was made of his novel?"),
            "Which film was made of his novel? (Philip K. Dick)",
        ),
        (
            ("What is agronomy?", "The science of crops.", "And who works in it, then?"),
            "And who works in it, then? (What is agronomy?)",
        ),
        (("How old was she?", "6 years", "What was she treated on?"), "(How old was she?)"),
        (
            (
                *WABOT,
                "And its successor?",
                "WABOT-2 came in 1984.",
                "Which instrument was it able to play?",
            ),
            "Which instrument was it able to play? (WABOT-2, WABOT-1)",
        ),
        (
            ("Who is Anna Holm?", "A builder.", *WABOT, "Which university was it built by?"),
            "Which university was it built by? (WABOT-1)",
        ),
        (
            ("橋はいつ建てられましたか？", "一八四三年です。", "それは誰が建てましたか？"),
            "それは誰が建てましたか？ (橋はいつ建てられましたか？)",
        ),
    ],
)
def test_join_puts_what_a_question_goes_on_from_in_brackets_behind_it(turns, joined):
    assert condense(chat(*turns), "join").endswith(joined)
    assert condense(chat(*turns), "join").startswith(turns[-1])


def test_join_stays_short_behind_turns_of_any_length():
    endless = "Anna Holm met Peter Sand, Marta Lund, Eva Berg, Ole Dahl, Ida Falk, Jon Vik. " * 500
    question = "Which of them built the bridge, and in which year was that?"
    for turns in ((endless, endless), (endless.lower(), endless.lower())):
        assert len(condense(chat(*turns, question), "join")) < len(question) + 450


@pytest.mark.parametrize(
    "question",
    [
        "Which university built it?",
        "And in Japan?",
        "Why?",
        "What about the other ones?",
        "How many of those died?",
        "Wer hat sie gebaut?",
        "Et en France ?",
        "¿Quién lo construyó y qué hizo ella después?",
        "彼は誰ですか？",
        "它是哪一年建成的？",
        "Кто построил его?",
    ],
)
def test_a_question_that_points_to_earlier_turns_refers(question):
    assert refers(question)


@pytest.mark.parametrize(
    "question",
    [
        "Who conducted experiments on the use of gypsum as a fertilizer?",
        "How many members does the American Astronomical Society have?",
        "Who directed Alien Resurrection?",
        "Wann wurde die steinerne Brücke von Anna Holm gebaut?",
        "In welchem Jahr entstand Rothamsted?",
        "Quel récepteur le virus utilise-t-il pour entrer dans les cellules ?",
        "¿En qué año empezaron Lawes y Gilbert los experimentos de campo?",
        "ワボット1号はどの大学で完成しましたか？",
    ],
)
def test_a_question_that_says_what_it_is_about_stands_alone(question):
    assert not refers(question)
    assert condense(chat(*WABOT, question)) == question


def test_auto_leaves_most_changes_of_subject_alone_and_joins_most_follow_ups():
    rows = [json.loads(line) for line in FOLLOW_UPS.read_text(encoding="utf-8").splitlines()]
    kept = {"follow-up": [], "switch": []}
    for row in rows:
        question = row["messages"][-1]["content"]
        kept[row["kind"]].append(condense(row["messages"]) == question)
    assert len(kept["follow-up"]) >= 30
    assert sum(kept["follow-up"]) <= len(kept["follow-up"]) / 10
    assert sum(kept["switch"]) >= len(kept["switch"]) * 9 / 10


def test_a_model_rewrites_a_question_of_the_conversation_it_is_shown():
    generate = saying("Which university built WABOT-1?\nWaseda did.")
    messages = chat(*WABOT, "Which university built it?", system="Never shown.")
    assert condense(messages, "model", generate=generate) == "Which university built WABOT-1?"
    ((asked, most),) = generate.asked
    assert most == REWRITE_TOKENS
    assert asked[-1]["content"] == (
        f"User: {WABOT[0]}\nAssistant: {WABOT[1]}\nLast question: Which university built it?"
    )
    assert "Never shown" not in json.dumps(asked)


@pytest.mark.parametrize(
    "said",
    [
        'Rewritten question: "Which university built WABOT-1?"',
        "\n  Which university built WABOT-1?  \n",
        "Question: Which university built WABOT-1?",
    ],
)
def test_what_a_model_puts_around_its_question_is_taken_away(said):
    messages = chat(*WABOT, "Which university built it?")
    assert condense(messages, "model", generate=saying(said)) == "Which university built WABOT-1?"


@pytest.mark.parametrize(
    "said",
    [
        "",
        " \n ",
        "Which university built ASIMO?",  # another name
        "Which university built WABOT-1 in 1999?",  # another number
        "Who is WABOT-1?",  # the question is lost
        "Which university built it?",  # still points back
        "Which university built it, in the year 1972?",
        "Waseda university built WABOT-1.",  # an answer
        WABOT[0],  # an earlier question
        "Waseda",
        "Which university built it? " * 100,
    ],
)
def test_what_a_model_makes_up_or_loses_is_not_asked(said):
    messages = chat(*WABOT, "Which university built it?")
    joined = condense(messages, "join")
    assert condense(messages, "model", generate=saying(said)) == joined


def test_without_a_model_or_room_for_the_conversation_the_question_is_joined():
    messages = chat(*WABOT, "Which university built it?")
    joined = condense(messages, "join")

    def no_room(messages, max_tokens):
        raise InputError("the conversation needs 900 tokens")

    assert condense(messages, "model") == joined
    assert condense(messages, "model", generate=no_room) == joined


def test_a_model_that_is_busy_is_heard_of():
    def busy(messages, max_tokens):
        raise BusyError("too much to do", retry_after_seconds=1)

    with pytest.raises(BusyError):
        condense(chat(*WABOT, "Which university built it?"), "model", generate=busy)


def test_a_long_conversation_is_shown_to_the_model_in_part():
    generate = saying("")
    condense(chat(*["word " * 2000] * 20, "And it?"), "model", generate=generate)
    ((asked, _),) = generate.asked
    assert sum(len(message["content"]) for message in asked) < 4000


@pytest.mark.parametrize(
    ("messages", "mode", "reason"),
    [
        ([], "auto", "no question"),
        ([{"role": "assistant", "content": "Hello"}], "auto", "no question"),
        ([{"role": "user", "content": "  "}], "off", "no question"),
        ([{"role": "user"}], "auto", "role and content"),
        ([{"role": "user", "content": ["text"]}], "join", "role and content"),
        (chat("Why?"), "some", "use one of auto, model, join, off"),
    ],
)
def test_what_cannot_be_condensed_is_an_input_error(messages, mode, reason):
    with pytest.raises(InputError, match=reason):
        condense(messages, mode)


def test_greedy_goes_on_from_messages_as_the_engine_does(tmp_path):
    folder = save_tiny_model(tmp_path / "model", SUPPORTED["llama"])
    make_tokenizer(chat_template=CHATML).save_pretrained(folder)
    backbone = load(str(folder), device="cpu")
    boost = KVBoost.from_pretrained(backbone, budget_bytes=0)
    messages = [{"role": "user", "content": "Say hello."}]
    said = boost.generate(messages, sampling=Sampling(5, first_line=True)).text
    assert greedy(backbone)(messages, 5) == said != ""
    with pytest.raises(InputError, match="context window"):
        greedy(backbone)([{"role": "user", "content": "word " * 900}], 5)


def test_a_model_without_a_chat_template_leaves_the_question_joined(tiny_backbone):
    messages = chat(*WABOT, "Which university built it?")
    generate = greedy(tiny_backbone("llama"))
    assert condense(messages, "model", generate=generate) == condense(messages, "join")


@settings(max_examples=200, deadline=None)
@given(
    texts=st.lists(st.text(max_size=60), min_size=1, max_size=5),
    mode=st.sampled_from(["auto", "model", "join", "off"]),
    said=st.text(max_size=40),
)
def test_whatever_is_said_the_question_is_kept_or_rewritten_and_nothing_raises(texts, mode, said):
    messages = chat(*texts)
    if not any(m["role"] == "user" and m["content"].strip() for m in messages):
        return
    asked = condense(messages, mode, generate=saying(said))
    last = next(
        m["content"].strip()
        for m in reversed(messages)
        if m["role"] == "user" and m["content"].strip()
    )
    assert asked.startswith(last) or (mode == "model" and asked.strip() and asked in said)
