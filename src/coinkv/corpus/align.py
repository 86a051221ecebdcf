"""Alignment: candidates matched back to spans of a chunk, or dropped when they state otherwise."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from rapidfuzz import process
from rapidfuzz.distance import Indel

from coinkv.corpus.chunks import Chunk
from coinkv.corpus.extract.sentences import UNSPACED, WORD, Span
from coinkv.errors import InputError

Kind = Literal["exact", "fuzzy"]

_WINDOW_SLACK = 0.2  # share of the candidate's words by which a fuzzy window may differ
_LONGEST_CLUSTER = 32  # characters of a base letter and its marks, bounded for hostile text
_UNSPACED = re.compile(f"[{UNSPACED}]")
_FOLDED = str.maketrans(
    dict.fromkeys("‘’‚‛′`´", "'")
    | dict.fromkeys("“”„‟″«»", '"')
    | dict.fromkeys("‐‑‒–—―−", "-")
    | dict.fromkeys("\u00ad\u200b\u2060\ufeff", "")
)

_SPELLED = {
    word: str(value)
    for words in (
        "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
        "fifteen sixteen seventeen eighteen nineteen twenty",
        "zeroth first second third fourth fifth sixth seventh eighth ninth tenth",
    )
    for value, word in enumerate(words.split())
}
_SPELLED |= {"thirty": "30", "forty": "40", "fifty": "50", "sixty": "60", "seventy": "70"}
_MAGNITUDES = "hundred|thousand|million|billion|trillion|half|twice|double|once"
_NUMBER = re.compile(
    r"[$€£¥%]|\bper ?cent\b"
    r"|(?:(?<![\w)])-)?(?:\d{1,3}(?:[ ,']\d{3})+(?!\d)|\d+)(?:[.,]\d+)*"
    rf"|\b(?:{'|'.join(_SPELLED)}|{_MAGNITUDES})s?\b"
    r"|[〇零一二三四五六七八九十百千万萬億亿两兩]"
)
_RAISED = ("<super>", "<sub>", "<fraction>")
_DECIMAL = re.compile(r"[.,]\d")
_THOUSANDS = re.compile(r"[ ,'](?=\d{3}(?!\d))")
_NEGATION = re.compile(
    r"\b(?:no|not|non|none|nobody|nothing|nowhere|never|neither|nor|cannot|without)\b|n't\b"
    r"|\b(?:nicht|kein\w*|nie|ohne|pas|jamais|sans|nunca|jamás|não|nem|sem|senza|niet|geen|не|нет"
    r"|без)\b|[不没沒无無未非]|ない|なかった|ません"
)
_NAME = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)*")
_FUNCTION_WORD = re.compile(
    "a|an|the|this|that|these|those|it|its|he|his|she|her|they|their|we|our|you|your|i|in|on|at|by"
    "|for|from|with|to|of|as|and|but|or|if|so|when|while|where|after|before|since|because|although"
    "|though|however|there|here|some|many|most|all|both|each|every|such|what|which|who|how"
)


@dataclass(frozen=True)
class Nugget:
    """A contiguous span of a chunk that states one piece of information.

    Attributes:
        start: first character in the chunk's text.
        end: one past the last character.
        token_start: first token in the chunk's `token_ids`, title header included in the count.
        token_end: one past the last token.
        kind: how the candidate was found.
    """

    start: int
    end: int
    token_start: int
    token_end: int
    kind: Kind


@dataclass(frozen=True)
class Alignment:
    """What became of a chunk's candidates.

    Attributes:
        nuggets: in document order, no span twice; spans may overlap.
        exact: nuggets found verbatim, or after normalising characters and white space.
        fuzzy: nuggets found by similarity.
        abandoned: candidates dropped. A repeated candidate found nowhere else counts nowhere.
        covered_tokens: body tokens that some nugget covers.
        total_tokens: body tokens of the chunk.
    """

    nuggets: tuple[Nugget, ...]
    exact: int
    fuzzy: int
    abandoned: int
    covered_tokens: int
    total_tokens: int

    @property
    def coverage(self) -> float:
        """Share of the body tokens that some nugget covers, 0 to 1."""
        return self.covered_tokens / self.total_tokens if self.total_tokens else 0.0


def align(candidates: Sequence[str], chunk: Chunk, *, tau: float = 0.7) -> Alignment:
    """Match candidates back to spans of a chunk (paper arXiv 2608.07458, Algorithm 1).

    Stage A takes a verbatim match of whole words, else one after normalising (NFKC, quotes, dashes,
    white space). Stage B takes the run of words, of the candidate's length within 20 % or one word,
    that is most similar, if its similarity exceeds `tau` and it has the same numbers, negations and
    capitalised names. Stage C drops the candidate. The same candidate again takes the next place
    where it occurs.

    Args:
        candidates: proposed texts, in any order.
        chunk: the chunk they were proposed for.
        tau: least similarity, exclusive: 1 minus insertions and deletions over both lengths.

    Raises:
        InputError: `tau` outside 0 to 1.
    """
    if not 0 <= tau <= 1:
        raise InputError(f"tau={tau} is not between 0 and 1", hint="the paper takes 0.7")
    text = _ChunkText(chunk.text)
    found: dict[Span, Kind] = {}
    resume: dict[str, int] = {}
    abandoned = 0
    for candidate in (candidate.strip() for candidate in candidates):
        after = resume.get(candidate, 0)
        kind: Kind = "exact"
        span = text.exact(candidate, after)
        if span is None and after:
            continue
        if span is None:
            kind, span = "fuzzy", text.fuzzy(candidate, tau)
        if span is None:
            abandoned += 1
            continue
        resume[candidate] = span[1] if kind == "exact" else len(chunk.text)
        if found.get(span) != "exact":
            found[span] = kind
    return _alignment(chunk, found, abandoned)


def _alignment(chunk: Chunk, found: dict[Span, Kind], abandoned: int) -> Alignment:
    starts, ends = [left for left, _ in chunk.offsets], [right for _, right in chunk.offsets]
    nuggets, covered = [], set[int]()
    for (start, end), kind in sorted(found.items()):
        # Tokens of one character all overlap it: the run takes every token that touches the span.
        first, last = bisect_right(ends, start), bisect_left(starts, end)
        covered.update(range(first, last))
        header = chunk.header_tokens
        nuggets.append(Nugget(start, end, header + first, header + last, kind))
    exact = sum(nugget.kind == "exact" for nugget in nuggets)
    return Alignment(
        nuggets=tuple(nuggets),
        exact=exact,
        fuzzy=len(nuggets) - exact,
        abandoned=abandoned,
        covered_tokens=len(covered),
        total_tokens=len(chunk.offsets),
    )


@dataclass(frozen=True)
class _Normalised:
    """A text with equal writings made equal; `starts`, `ends`: each character's source range."""

    text: str
    starts: list[int]
    ends: list[int]

    @classmethod
    def of(cls, source: str) -> _Normalised:
        characters: list[str] = []
        starts: list[int] = []
        ends: list[int] = []
        for start, end in _clusters(source):
            folded = _folded(source, start, end)
            if folded == " " and characters[-1:] == [" "]:
                ends[-1] = end
                continue
            characters += folded
            starts += [start] * len(folded)
            ends += [end] * len(folded)
        return cls("".join(characters), starts, ends)


def _clusters(source: str) -> Iterator[Span]:
    """Ranges that NFKC can rewrite one by one: a character with all that composes with it."""
    start = 0
    for at in range(1, len(source) + 1):
        if at < len(source) and source[at] >= "\u0300" and at - start < _LONGEST_CLUSTER:
            before, after = source[start:at], source[at]
            apart = unicodedata.normalize("NFKC", before) + unicodedata.normalize("NFKC", after)
            if (
                unicodedata.combining(after)
                or unicodedata.normalize("NFKC", before + after) != apart
            ):
                continue
        if at > start:
            yield start, at
        start = at


def _folded(source: str, start: int, end: int) -> str:
    raw = source[start:end]
    if raw.isspace():
        return " "
    # Ten squared is not 102, one and a half not 11/2.
    form = unicodedata.decomposition(raw[0])
    if start and source[start - 1].isdigit() and form.startswith(_RAISED):
        return raw
    return unicodedata.normalize("NFKC", raw.translate(_FOLDED))


@dataclass(frozen=True)
class _ChunkText:
    """A chunk's text, normalised once it is needed."""

    text: str

    @cached_property
    def normalised(self) -> _Normalised:
        return _Normalised.of(self.text)

    @cached_property
    def words(self) -> list[Span]:
        return [match.span() for match in WORD.finditer(self.normalised.text)]

    def exact(self, candidate: str, after: int) -> Span | None:
        """Where the candidate stands, verbatim or normalised, from character `after` on."""
        if not any(character.isalnum() for character in candidate):
            return None
        at = _find(candidate, self.text, after)
        if at is not None:
            return at, at + len(candidate)
        needle = _Normalised.of(candidate).text.strip()
        at = _find(needle, self.normalised.text, bisect_left(self.normalised.starts, after))
        return None if at is None else self._source(at, at + len(needle))

    def fuzzy(self, candidate: str, tau: float) -> Span | None:
        """The most similar run of words, unless it is not similar enough or states otherwise."""
        if not any(character.isalnum() for character in candidate):
            return None
        needle = _Normalised.of(candidate).text.strip()
        windows = list(self._windows(len(WORD.findall(needle))))
        texts = [self.normalised.text[start:end] for start, end in windows]
        best = process.extractOne(
            needle, texts, scorer=Indel.normalized_similarity, score_cutoff=tau
        )
        if best is None or best[1] <= tau or _contradict(needle, best[0]):
            return None
        return self._source(*windows[best[2]])

    def _windows(self, size: int) -> Iterator[Span]:
        slack = max(1, round(_WINDOW_SLACK * size))
        for length in range(max(1, size - slack), min(size + slack, len(self.words)) + 1):
            for first in range(len(self.words) - length + 1):
                yield self.words[first][0], self.words[first + length - 1][1]

    def _source(self, start: int, end: int) -> Span:
        return self.normalised.starts[start], self.normalised.ends[end - 1]


def _find(needle: str, text: str, after: int) -> int | None:
    at = text.find(needle, after)
    while at >= 0:
        if not (_inside_word(text, at) or _inside_word(text, at + len(needle))):
            return at
        at = text.find(needle, at + 1)
    return None


def _inside_word(text: str, at: int) -> bool:
    """Whether a span that begins or ends here would cut a word or a number."""
    if not 0 < at < len(text):
        return False
    left, right = text[at - 1], text[at]
    if unicodedata.category(right).startswith("M") or "\u200d" in (left, right):
        return True
    if _UNSPACED.match(left) or _UNSPACED.match(right):
        return False
    # "5" does not stand in "5.3", nor "3".
    if left.isdigit() and _DECIMAL.match(text, at):
        return True
    if right.isdigit() and left in ".," and text[max(at - 2, 0)].isdigit():
        return True
    return _in_word(left) and _in_word(right)


def _in_word(character: str) -> bool:
    return character.isalnum() or unicodedata.category(character).startswith("M")


def _contradict(candidate: str, window: str) -> bool:
    """Whether two normalised texts differ in numbers, negations or capitalised names."""
    ours, theirs = candidate.casefold(), window.casefold()
    return (
        _numbers(ours) != _numbers(theirs)
        or len(_NEGATION.findall(ours)) != len(_NEGATION.findall(theirs))
        or bool(_names(candidate) - _words(window))
        or bool(_names(window) - _words(candidate))
    )


def _numbers(text: str) -> list[str]:
    """Numbers, percent and currency signs in order, each in one writing."""
    values = []
    for match in _NUMBER.finditer(text):
        value = match.group()
        if value in ("percent", "per cent"):
            value = "%"
        elif any(character.isdigit() for character in value):
            value = _THOUSANDS.sub("", value).replace(",", ".")
        values.append(_SPELLED.get(value, value))
    return values


def _words(text: str) -> set[str]:
    return {word.removesuffix("'s").casefold() for word in _NAME.findall(text)}


def _names(text: str) -> set[str]:
    """Words with a capital letter, casefolded; function words count only when all in capitals."""
    capitalised = (word for word in _NAME.findall(text) if word != word.lower())
    return {
        word.removesuffix("'s").casefold()
        for word in capitalised
        if not _FUNCTION_WORD.fullmatch(word.casefold()) or (len(word) > 1 and word.isupper())
    }
