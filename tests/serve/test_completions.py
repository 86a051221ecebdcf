"""Text completions: texts and token ids, one or several, whole and streamed."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from chatting import CHAT, CONTEXT, QUESTIONS, error_of, events_of, wait_until

from coinkv.boost.engine import KVBoost
from coinkv.errors import BusyError
from coinkv.model.chat import prompt_ids
from coinkv.model.decode import Sampling
from coinkv.serve.api.schemas.completions import MOST_PROMPTS, Completion
from coinkv.store.tiers import Tiers

pytest_plugins = ("chat_fixtures",)

PROMPT = "Marta counted 14 sheep"


def ask(http: httpx.Client, **body: Any) -> httpx.Response:
    given = {"model": CHAT, "prompt": PROMPT, "max_tokens": 9, **body}
    return http.post("/v1/completions", json=given)


def complete(http: httpx.Client, **body: Any) -> Any:
    reply = ask(http, **body)
    assert reply.status_code == 200, reply.text
    Completion.model_validate(reply.json())
    return reply.json()


def stream(http: httpx.Client, **body: Any) -> list[Any]:
    reply = ask(http, stream=True, **body)
    assert reply.status_code == 200, reply.text
    chunks = events_of(reply.text)
    for chunk in chunks:
        Completion.model_validate(chunk)
    return chunks


def texts_of(reply: Any) -> list[str]:
    return [choice["text"] for choice in reply["choices"]]


def joined(chunks: list[Any], choice: int) -> str:
    pieces = [c for chunk in chunks for c in chunk["choices"] if c["index"] == choice]
    return "".join(piece["text"] for piece in pieces)


def test_a_continuation_is_the_librarys(http, chat_running):
    with KVBoost(chat_running.service.backbone, Tiers(10_000_000)) as boost:
        expected = boost.generate(PROMPT, sampling=Sampling(9))
    reply = complete(http)
    assert texts_of(reply) == [expected.text]
    assert reply["usage"]["prompt_tokens"] == expected.prompt_tokens
    assert reply["object"] == "text_completion"


def test_token_ids_are_taken_as_they_are(http, chat_running):
    ids = list(prompt_ids(chat_running.service.backbone, PROMPT))
    assert texts_of(complete(http, prompt=ids)) == texts_of(complete(http))
    assert texts_of(complete(http, prompt=[ids, ids])) == texts_of(complete(http)) * 2


def test_several_prompts_are_answered_in_their_order(http):
    prompts = [PROMPT, "The river had risen", "Who counted"]
    singles = [
        texts_of(complete(http, prompt=each, n=2, seed=1, temperature=1)) for each in prompts
    ]
    reply = complete(http, prompt=prompts, n=2, seed=1, temperature=1)
    assert texts_of(reply) == [text for texts in singles for text in texts]
    assert [choice["index"] for choice in reply["choices"]] == list(range(6))
    assert reply["usage"]["completion_tokens"] == 6 * 9
    assert [each["prompt_tokens"] for each in reply["coinkv"]] == [
        complete(http, prompt=each)["usage"]["prompt_tokens"] for each in prompts
    ]
    chunks = stream(http, prompt=prompts, n=2, seed=1, temperature=1)
    assert [joined(chunks, choice) for choice in range(6)] == texts_of(reply)


def test_a_stream_ends_with_its_reason_and_the_counts_if_they_are_wanted(http):
    chunks = stream(http, stream_options={"include_usage": True})
    assert [c["finish_reason"] for chunk in chunks[:-1] for c in chunk["choices"]][-1] == "length"
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == complete(http)["usage"] | {
        "prompt_tokens_details": chunks[-1]["usage"]["prompt_tokens_details"]
    }


def test_an_echo_repeats_the_prompt_in_front_of_the_answer(http, chat_running):
    (text,) = texts_of(complete(http))
    assert texts_of(complete(http, echo=True)) == [PROMPT + text]
    assert joined(stream(http, echo=True), 0) == PROMPT + text
    ids = list(chat_running.service.backbone.tokenize(PROMPT).ids)
    assert texts_of(complete(http, prompt=ids, echo=True))[0].startswith(PROMPT)


def test_no_tokens_at_all_may_be_wanted(http):
    reply = complete(http, max_tokens=0, echo=True)
    assert texts_of(reply) == [PROMPT]
    assert reply["usage"]["completion_tokens"] == 0
    assert reply["choices"][0]["finish_reason"] == "length"


def test_offsets_say_where_in_the_text_each_token_begins(http):
    reply = complete(http, logprobs=3, max_tokens=25)
    text, told = reply["choices"][0]["text"], reply["choices"][0]["logprobs"]
    assert {len(each) for each in told.values()} == {25}
    whole = [each for each in told["tokens"] if not each.startswith("bytes:")]
    assert len(whole) > 5
    for token, offset in zip(told["tokens"], told["text_offset"], strict=True):
        if not token.startswith("bytes:"):
            # bytes that began a character which never came to an end show with the next token
            assert text[offset:].lstrip("\ufffd").startswith(token)
    assert told["text_offset"] == sorted(told["text_offset"])
    for token, logprob, top in zip(
        told["tokens"], told["token_logprobs"], told["top_logprobs"], strict=True
    ):
        assert top[token] == logprob == max(top.values()) <= 0
        assert len(top) == 3


def test_a_stream_tells_the_same_probabilities(http):
    told = complete(http, logprobs=2)["choices"][0]["logprobs"]
    pieces = [c["logprobs"] for chunk in stream(http, logprobs=2) for c in chunk["choices"]]
    for name, expected in told.items():
        assert [each for piece in pieces if piece for each in piece[name]] == expected


def test_the_chosen_token_is_told_even_if_likelier_ones_are_not_asked_for(http):
    told = complete(http, logprobs=0)["choices"][0]["logprobs"]
    assert [list(top) for top in told["top_logprobs"]] == [[token] for token in told["tokens"]]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": ["a"] * (MOST_PROMPTS + 1)}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt[1]"),
        ({"prompt": {"text": "a"}}, "prompt"),
        ({"prompt": [-1]}, "prompt[0]"),
        ({"suffix": "the end"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"echo": True, "logprobs": 1}, "logprobs"),
        ({"logprobs": 6}, "logprobs"),
        ({"model": QUESTIONS}, "model"),
        ({"model": "all-minilm-l6-v2"}, "model"),
    ],
)
def test_what_cannot_be_continued_is_refused_by_name(http, body, param):
    assert error_of(ask(http, **body), 400)["param"] == param


@pytest.mark.parametrize("prompt", [[383, 384], "sheep " * CONTEXT])
def test_a_prompt_that_the_model_cannot_read_is_the_clients_error(http, prompt):
    for streamed in (False, True):
        error_of(ask(http, prompt=prompt, stream=streamed), 400)


def test_one_prompt_that_fails_fails_all_of_them(http, outcomes):
    error_of(ask(http, prompt=["a", "sheep " * CONTEXT, "b"], max_tokens=1400), 400)
    wait_until(lambda: sorted(outcomes) == ["cancelled", "cancelled", "error"])


def test_prompts_that_find_no_room_take_none(http, chat_running, outcomes, monkeypatch):
    scheduler = chat_running.service.scheduler
    submit, calls = scheduler.submit, []

    def third_fails(*arguments: Any, **more: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise BusyError("full", retry_after_seconds=2)
        return submit(*arguments, **more)

    monkeypatch.setattr(scheduler, "submit", third_fails)
    reply = ask(http, prompt=["a", "b", "c"], max_tokens=1400)
    assert error_of(reply, 429)["code"] == "rate_limit_exceeded"
    assert reply.headers["retry-after"] == "2"
    wait_until(lambda: outcomes.count("cancelled") == 2)
