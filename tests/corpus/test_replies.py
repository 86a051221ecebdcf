"""Replies of chat models: lists as asked for, what can be saved of others, and what cannot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coinkv.corpus.extract.kept import keep, kept_reply
from coinkv.corpus.extract.replies import Reply, last_end, read_reply

BRIDGE, ARCHES, FLOOD = (
    "The stone bridge was built in 1843.",
    "It has three arches",
    'A flood, said Anna, "took" one in 1910.',
)
PASSAGE = f"{BRIDGE} {ARCHES}.\n{FLOOD} Since 1962 it carries\nno cars."
RETOLD = "The passage is about a bridge."
SPANS = [BRIDGE, ARCHES, FLOOD, "Since 1962", "no cars"]
ITEMS = st.lists(st.sampled_from(SPANS), min_size=1, unique=True)


@pytest.mark.parametrize(
    "content",
    [
        f"['{BRIDGE}', '{ARCHES}']",
        f'["{BRIDGE}", "{ARCHES}",]',
        f'Nuggets: ["{BRIDGE}",\n "{ARCHES}"] Done.',
        f"1. {BRIDGE}\n2. {ARCHES}",
        f"Here they are:\n\n- {BRIDGE}\n- {ARCHES}\n\nThat is all.",
        f'* "{BRIDGE}",\n* "{ARCHES}",',
        f"“{BRIDGE}”\n“{ARCHES}”",
    ],
)
def test_a_list_in_another_writing_counts(content: str) -> None:
    assert read_reply(content, PASSAGE) == Reply((BRIDGE, ARCHES), mended=True)


def test_quotation_marks_inside_an_item_may_stand_as_they_are() -> None:
    content = f'[\n  "{BRIDGE}",\n  "{FLOOD}"\n]'
    assert read_reply(content, PASSAGE) == Reply((BRIDGE, FLOOD), mended=True)
    assert read_reply(f"['Anna''s', '{ARCHES}']", PASSAGE) is None


@pytest.mark.parametrize(
    "content",
    [
        RETOLD,
        f"- {RETOLD}\n- It tells who built it.",
        f'["{RETOLD}", "It tells who built it.",]',
        f"- Copy every nugget from the passage.\n- Keep the order.\n- {ARCHES}",
        f"- {ARCHES}",
        f"<think>\n1. {BRIDGE}\n2. {ARCHES}",
        f'["{BRIDGE}", 3]',
        f'[["{BRIDGE}"], ["{ARCHES}"]]',
        f"{BRIDGE} {ARCHES}.",
        '["he stone bridg", "three arche",]',
    ],
)
def test_what_is_no_list_of_spans_of_the_passage_does_not(content: str) -> None:
    assert read_reply(content, PASSAGE) is None


def test_a_json_list_is_left_to_alignment_whatever_it_says() -> None:
    assert read_reply(json.dumps([RETOLD]), PASSAGE) == Reply((RETOLD,))
    assert read_reply("[]", PASSAGE) == Reply(())


def test_white_space_of_an_item_may_differ_from_the_passages() -> None:
    assert read_reply("['it carries no cars',]", PASSAGE) == Reply(
        ("it carries no cars",), mended=True
    )
    assert last_end(["it carries no cars"], PASSAGE) == len(PASSAGE) - 1


@given(items=ITEMS, data=st.data(), indent=st.sampled_from([None, 2]))
def test_of_a_list_cut_anywhere_the_items_before_the_cut_remain(
    items: list[str], data: st.DataObject, indent: int | None
) -> None:
    written = json.dumps(items, indent=indent)
    cut = data.draw(st.integers(1, len(written) - 1))
    reply = read_reply(f"```json\n{written[:cut]}", PASSAGE, cut_off=True)
    complete = sum(json.dumps(each) in written[:cut] for each in items)
    if reply is None:
        assert complete == 0
    else:
        assert list(reply.candidates) == items[:complete]
        assert not reply.whole


def test_a_model_that_says_the_same_until_it_is_ended_is_not_listened_to() -> None:
    begun = f'["{BRIDGE}", "{ARCHES}",'
    assert read_reply(begun + f' "{ARCHES}",' * 50, PASSAGE, cut_off=True) is None
    twice = read_reply(begun + f' "{ARCHES}",', PASSAGE, cut_off=True)
    assert twice == Reply((BRIDGE, ARCHES), False, True)


def test_of_numbered_lines_cut_off_the_last_one_is_left_out() -> None:
    content = f"1. {BRIDGE}\n2. {ARCHES}\n3. A flood, said"
    assert read_reply(content, PASSAGE, cut_off=True) == Reply((BRIDGE, ARCHES), False, True)
    assert read_reply(content, PASSAGE) == Reply((BRIDGE, ARCHES, "A flood, said"), True, True)


@given(st.one_of(st.text(), st.text("[]{}\"',\\\n-1. ab"), st.none(), st.integers()))
def test_no_reply_is_an_error_and_none_is_taken_that_the_passage_does_not_say(
    content: Any,
) -> None:
    reply = read_reply(content, PASSAGE, cut_off=True)
    if reply is not None and reply.mended:
        found = sum(last_end([each], PASSAGE) > 0 for each in reply.candidates)
        assert 2 * found >= len(reply.candidates) > 0


@pytest.mark.parametrize("content", ["[" * 100_000, '["' * 50_000, "- " * 100_000, "'" * 99_999])
def test_hostile_replies_are_refused_quickly(content: str) -> None:
    assert read_reply(content, PASSAGE) is None


@pytest.mark.parametrize("reply", [Reply((BRIDGE,)), Reply((BRIDGE, ARCHES), whole=False)])
def test_a_kept_reply_says_whether_it_was_cut_off(tmp_path: Path, reply: Reply) -> None:
    keep(tmp_path / "a" / "reply.json", reply)
    assert kept_reply(tmp_path / "a" / "reply.json") == reply
