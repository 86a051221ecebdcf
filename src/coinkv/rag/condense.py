"""Condensing: the last question of a chat, made to stand alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Literal, get_args

import torch

from coinkv.errors import InputError
from coinkv.model.backbone import Backbone
from coinkv.model.chat import Message, prompt_ids
from coinkv.model.decode import Sampling, decode
from coinkv.model.fill import LiveCache, fill

CondenseMode = Literal["auto", "model", "join", "off"]
Generate = Callable[[Sequence[Message], int], str]
"""Continues chat messages greedily, by so many tokens at most."""

REWRITE_TOKENS = 48
_EARLIER = 3  # most earlier questions that are looked at
_NAMES = 6  # most names that are taken from them
_SHORT = 5  # words of a question that says too little to stand alone
_LONGEST = 400  # characters of a turn that are looked at: a turn may be a whole document
_KEPT = 0.5  # least share of the question's own words that a rewritten one must keep
_INSTRUCTION = (
    "Rewrite the last question so that it can be understood without the conversation. "
    "Reply with the rewritten question only."
)
_EXAMPLES = (
    (
        "User: Who built the Eiffel Tower?\nAssistant: Gustave Eiffel's company.\n"
        "Last question: How tall is it?",
        "How tall is the Eiffel Tower?",
    ),
    (
        "User: When was Marie Curie born?\nAssistant: In 1867.\nLast question: And her husband?",
        "When was the husband of Marie Curie born?",
    ),
)
_WORD = re.compile(r"\w+")
# en, de, fr, es, it, pt, nl, ru: pronouns, and words by which a question goes on from another
_REFERRING = frozenset(
    _WORD.findall("""
    it its itself they them their theirs he him his she her hers this that these those there then
    one ones other others another same such so else too also
    er sie es ihn ihm ihr ihre ihrem ihren ihrer seine seinem seinen seiner dessen deren dieser
    diese dieses diesem diesen jener jene dort dabei dafür damit daran darauf davon dazu auch noch
    il ils elle elles lui leur leurs sa ses ce cet cette ces celui celle ceux cela ça aussi
    él ella ellos ellas su sus este esta esto ese esa eso aquel aquella allí entonces también
    lui lei loro suo sua suoi sue questo questa questi quello quella lì allora anche
    ele ela eles elas seu sua seus suas isso isto esse essa aquele aquela lá então também
    hij zij hem haar hun zijn deze dit dat daar daarvan ook
    он она оно они его её ей ему их им этот эта это эти тот там тогда тоже
    """)
)
_REFERRING_SIGNS = re.compile(
    "[它他她這这那其此]|それ|これ|その|この|そこ|彼|그것|그는|그녀|그들|이것"
)
_GOES_ON = re.compile(
    r"(?:and|but|or|what about|how about|und|aber|et|mais|y|pero|e|ma|mas|maar|и|а)\b", re.I
)
_NAME_WORD = re.compile(r"\d+(?:[.,]\d+)+|\w+(?:[-.’']\w+)*")
_INSIDE_NAME = re.compile(r"\s+|(?<=\b\w)\.\s+|(?<=\b[DM]r)\.\s+")
_UNSPACED = re.compile("[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff]")
_ASKS = ("?", "？", "؟")
_LABEL = re.compile(r"^(?:(?:rewritten|last|new) )?(?:question|assistant|user) *: *", re.I)


def condense(
    messages: Sequence[Message], mode: CondenseMode = "auto", *, generate: Generate | None = None
) -> str:
    """The question that a chat ends with, as one that stands alone.

    Args:
        messages: `role` and `content`, oldest first. The last message of the user asks; earlier
            ones of user and assistant count.
        mode: `off`: the question as it is. `join`: with what it goes on from in brackets behind
            it: names and numbers of the turns before; behind a brief question, or where nothing was
            named, the questions themselves. `model`: as the model rewrites it; where that holds a
            name or number that the conversation has not, loses the question or still points back,
            `join`. `auto`: as it is when nothing in it points to earlier turns, else `join`
            (measured in docs/decisions.md).
        generate: lets a model go on, see `greedy`; without it `model` is `join`.

    Raises:
        InputError: no such mode, no question, or a message without role and content.
    """
    if mode not in get_args(CondenseMode):
        raise InputError(
            f"condense is {mode!r}", hint=f"use one of {', '.join(get_args(CondenseMode))}"
        )
    turns = [_turn(message) for message in messages]
    last = max((n for n, (role, text) in enumerate(turns) if role == "user" and text), default=None)
    if last is None:
        raise InputError("the chat holds no question", hint="end it with a message of the user")
    question = turns[last][1]
    earlier = [turn for turn in turns[:last] if turn[0] in ("user", "assistant") and turn[1]]
    alone = not any(role == "user" for role, _ in earlier)
    if alone or mode == "off" or (mode == "auto" and not refers(question)):
        return question
    said = None
    if mode == "model" and generate is not None:
        said = _rewritten(question, earlier[-2 * _EARLIER :], generate)
    return said or _joined(question, earlier)


def refers(question: str) -> bool:
    """Whether a question points to what was said before it.

    By a pronoun, by a beginning such as "and", or by saying little and naming nothing. A rule over
    the function words of eight European languages and signs of Chinese, Japanese and Korean; what
    it misses is taken to stand alone.
    """
    # "utilise-t-il" repeats the subject of its own sentence, so it is one word here
    words = _NAME_WORD.findall(question.casefold())
    if _GOES_ON.match(question.strip()) or not _REFERRING.isdisjoint(words):
        return True
    return bool(_REFERRING_SIGNS.search(question)) or (_brief(question) and not _names(question))


def _brief(question: str) -> bool:
    """Whether a question leaves to an earlier one what it asks: "and in Japan?"."""
    words = _NAME_WORD.findall(question)
    size = len("".join(words)) / 2 if _UNSPACED.search(question) else len(words)
    return size <= _SHORT or bool(_GOES_ON.match(question.strip()))


def greedy(backbone: Backbone) -> Generate:
    """A backbone as `condense` wants it: one line, chosen greedily, pass by pass."""

    def generate(messages: Sequence[Message], max_tokens: int) -> str:
        ids = prompt_ids(backbone, messages)
        backbone.require_room(len(ids) + max_tokens, "the conversation")
        cache = LiveCache.for_backbone(backbone, len(ids) + max_tokens)
        logits = fill(backbone, cache, ids, torch.arange(len(ids)))
        if logits is None:
            raise TypeError("fill was asked for logits")
        sampling = Sampling(max_tokens, first_line=True)
        return "".join(piece.text for piece in decode(backbone, cache, logits, sampling))

    return generate


def _turn(message: Message) -> tuple[str, str]:
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or not isinstance(content, str):
        raise InputError("a message needs role and content, both texts")
    return role, content.strip()


def _joined(question: str, earlier: Sequence[tuple[str, str]]) -> str:
    """The question, and in brackets what it goes on from: names, or questions.

    A question that itself points further back brings the turns before it along.
    """
    topics: list[str] = []
    questions: list[str] = []
    answered: list[str] = []
    for role, text in reversed(earlier):
        if role == "assistant":  # a bare number is what was asked for, and seldom asked about
            answered = [name for name in _names(text) if _has_letters(name)] + answered
            continue
        questions.insert(0, _clipped(text))
        topics += _names(text) + answered
        answered = []
        if not refers(text) or len(questions) == _EARLIER:
            break
    new = {
        topic.casefold(): topic for topic in topics if topic.casefold() not in question.casefold()
    }
    named = any(map(_has_letters, new)) and not _brief(question)
    return f"{question} ({', '.join([*new.values()][:_NAMES]) if named else ' '.join(questions)})"


def _names(text: str) -> list[str]:
    """Names and numbers of a text: words written large or with digits, neighbours together.

    A question's first word is written large in any case; that of another text counts when a word
    written large follows, or none.
    """
    text = _clipped(text)
    found = [*_NAME_WORD.finditer(text)]
    large = [word[0][0].isupper() or any(sign.isdigit() for sign in word[0]) for word in found]
    asks = text.endswith(_ASKS)
    if found and found[0][0].isalpha() and (asks or len(found) > 1):
        large[0] = not asks and len(found[0][0]) > 3 and found[1][0][0].isupper() and large[0]
    names: list[str] = []
    end: int | None = None
    for word, counts in zip(found, large, strict=True):
        if counts and end is not None and _INSIDE_NAME.fullmatch(text, end, word.start()):
            names[-1] = text[text.rindex(names[-1], 0, end) : word.end()]
        elif counts:
            names.append(word[0])
        end = word.end() if counts else None
    return names


def _rewritten(question: str, earlier: Sequence[tuple[str, str]], generate: Generate) -> str | None:
    """The question as the model puts it; None where that cannot be used."""
    messages = [{"role": "system", "content": _INSTRUCTION}]
    for example, answer in _EXAMPLES:
        messages.append({"role": "user", "content": example})
        messages.append({"role": "assistant", "content": answer})
    shown = [f"{role.capitalize()}: {_clipped(text)}" for role, text in earlier]
    asked = "\n".join([*shown, f"Last question: {_clipped(question)}"])
    messages.append({"role": "user", "content": asked})
    try:
        said = generate(messages, REWRITE_TOKENS)
    except InputError:  # a model without a chat template, or with little room
        return None
    line = next((line.strip() for line in said.splitlines() if line.strip()), "")
    text = _LABEL.sub("", line).strip(" \"'“”«»")
    return text if _faithful(text, question, [text for _, text in earlier]) else None


def _faithful(text: str, question: str, earlier: Sequence[str]) -> bool:
    """Whether a rewritten question asks what was asked, alone, of things spoken of before."""
    words, own = _words(text), {word for word in _words(question) if word not in _REFERRING}
    spoken = {word for each in (question, *earlier) for word in _words(each)}
    names = {word for name in _names(text) for word in _words(name)}
    return (
        bool(words)
        and len(text) <= 2 * _LONGEST
        and (text.endswith(_ASKS) or not question.endswith(_ASKS))
        and not refers(text)
        and names <= spoken
        and len(own.intersection(words)) >= _KEPT * len(own)
        and words not in [_words(each) for each in earlier]
    )


def _has_letters(name: str) -> bool:
    return any(sign.isalpha() for sign in name)


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def _clipped(text: str) -> str:
    """A turn on one line, not longer than a few sentences."""
    return " ".join(text[:_LONGEST].split())
