"""What a chat model's reply says: the list that was asked for, or what can be saved of one."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

_FENCE = re.compile(r"```\w*\s*\n(.*?)```", re.DOTALL)
_THOUGHT = re.compile(r"\A\s*<think>.*?(?:</think>|\Z)", re.DOTALL)
_ITEM = re.compile(r"(?:[-*•]\s+|\d{1,3}[.)]\s+|(?=[\"'“]))(.*\S)")
_STRING = re.compile(r"""\s*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')\s*(?:,|(?=\])|\Z)""", re.DOTALL)
_UNFINISHED = re.compile(r"""("(?:[^"\\]|\\.)*|'(?:[^'\\]|\\.)*)\\?""", re.DOTALL)
_QUOTED = re.compile(r"([\"'“])(.*)[\"'”]", re.DOTALL)
_FEWEST_LINES = 2
_LEAST_SHARE = 0.5


@dataclass(frozen=True)
class Reply:
    """Candidates that a reply names.

    Attributes:
        candidates: in the reply's order.
        whole: the reply came to its end; else it was cut off, and a candidate that was cut with it
            is left out.
        mended: it is not the list that was asked for.
    """

    candidates: tuple[str, ...]
    whole: bool = True
    mended: bool = False


def read_reply(content: Any, passage: str, *, cut_off: bool = False) -> Reply | None:
    """The candidates in a reply, or None where it cannot be used.

    A JSON list of strings is taken as it is: bare, fenced, or alone in an object. Small models also
    write Python lists, commas too many, lists that the token limit cut off, numbered or quoted
    lines. Such a list counts, every item once, where at least half of the items stand in the
    passage word for word, and at least half are no repetition: that tells a list of spans from
    instructions repeated, a passage retold, or a model that says the same until it is ended.

    Args:
        content: the message's content, a text if all is well.
        passage: the text that was asked about.
        cut_off: whether the endpoint says that a limit ended the reply.
    """
    text = _THOUGHT.sub("", content if isinstance(content, str) else "").strip()
    fenced = _FENCE.search(text)
    strict = json_list(fenced.group(1) if fenced else text)
    if strict is not None:
        return Reply(tuple(strict))
    mended = _bracketed(text) or _listed(text, cut_off)
    if mended is None or not mended.candidates:
        return None
    distinct = tuple(dict.fromkeys(mended.candidates))
    found = sum(last_end([each], passage) > 0 for each in distinct)
    retold = found < _LEAST_SHARE * len(distinct)
    repeated = len(distinct) < _LEAST_SHARE * len(mended.candidates)
    return None if retold or repeated else replace(mended, candidates=distinct)


def json_list(text: str) -> list[str] | None:
    """The list of strings that a JSON text is, or that is alone in it as an object's member."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if isinstance(value, dict):
        lists = [held for held in value.values() if isinstance(held, list)]
        value = lists[0] if len(lists) == 1 else None
    return _strings(value)


def last_end(candidates: Sequence[str], passage: str) -> int:
    """Where the last of the candidates ends that stand in a passage word for word; 0: none does.

    White space counts as one space, and no word or number is cut.
    """
    ends = [0]
    for candidate in candidates:
        words = r"\s+".join(re.escape(word) for word in candidate.split())
        found = re.search(rf"(?<!\w){words}(?!\w)", passage) if words else None
        ends += [] if found is None else [found.end()]
    return max(ends)


def _strings(value: Any) -> list[str] | None:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        return None
    return value


def _bracketed(text: str) -> Reply | None:
    """A list of quoted strings that is no JSON, or has no end."""
    at = text.find("[") + 1
    if not at:
        return None
    items = []
    while found := _STRING.match(text, at):
        items.append(_unquoted(found.group(1)))
        at = found.end()
    rest = text[at:].lstrip()
    if rest.startswith("]"):
        return Reply(tuple(items), mended=True)
    if rest and not _UNFINISHED.fullmatch(rest):
        return None
    return Reply(tuple(items), whole=False, mended=True)


def _unquoted(literal: str) -> str:
    """The text of a quoted string, JSON's or Python's."""
    inner = literal[1:-1]
    if literal[0] == "'":
        inner = inner.replace("\\'", "'").replace('"', '\\"')
    try:
        text: str = json.loads(f'"{inner}"', strict=False)
    except ValueError:  # an escape that JSON does not have
        return inner
    return text


def _listed(text: str, cut_off: bool) -> Reply | None:
    """Numbered, bulleted or quoted lines; the lines around them say nothing."""
    lines = [line.strip() for line in text.splitlines()]
    items = [item.group(1).rstrip(" ,") for line in lines if (item := _ITEM.fullmatch(line))]
    if cut_off and lines and _ITEM.fullmatch(lines[-1]):
        items = items[:-1]
    if len(items) < _FEWEST_LINES:
        return None
    quoted = [_QUOTED.fullmatch(item) for item in items]
    candidates = (q.group(2) if q else item for q, item in zip(quoted, items, strict=True))
    return Reply(tuple(candidates), whole=not cut_off, mended=True)
