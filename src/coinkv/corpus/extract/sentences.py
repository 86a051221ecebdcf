"""Where units, sentences, clauses and words of a text end, and the extractor built on that."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import pysbd
from pysbd.languages import LANGUAGE_CODES

from coinkv.corpus.extract.base import Extractor
from coinkv.errors import InputError

Span = tuple[int, int]

UNSPACED = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
"""Regex character class of scripts written without spaces: kana and Han."""

WORD = re.compile(f"[{UNSPACED}]|[^\\s{UNSPACED}]+")
"""A word: a run without white space, or one character of a script written without spaces."""

MARKER = re.compile(r"(?:#{1,6}|[-*+•‣▪·>|]|\(?\d{1,3}[.)]|\(?[a-z]\))\s+")
"""What a heading, list item or table row begins with."""

CLAUSE_GAP = re.compile(
    r"(?<=[;:])\s+"
    r"|(?<=,)\s+(?=(?:and|but|or|nor|so|yet|while|whereas|although|though|because|which|who|where"
    r"|when|und|oder|aber|et|mais|ou|y|pero|e|ma)\b)"
    r"|(?<=\s[–—-])\s+(?!\d)|(?<=--)\s*(?![\s-])|(?<=—)\s*|(?<=[；：，])\s*"
)
"""The white space, perhaps none, between two clauses."""

_COMMA_GAP = re.compile(r"(?<=,)\s+|(?<=、)\s*")
_LETTER_OR_DIGIT = re.compile(r"[^\W_]")
_LONGEST_UNIT = 4000  # characters; the cost of pysbd grows faster than the length of its input
_WRAP_WIDTHS = range(40, 121)  # characters; beyond it lines are paragraphs, below it a list
_WRAP_RAGGED = 4  # characters by which wrapped lines may differ, indents included
_WRAPPED_SHARE = 0.7  # of a paragraph's breaks; a list of long items has fewer full lines


def sentence_spans(text: str, language: str = "en", *, since: int = 0) -> list[Span]:
    """Character ranges of the sentences of a text, white space around them left out.

    Nothing but white space lies between two ranges. A heading, a list item or any other line that
    was broken on purpose is a unit of its own; lines broken by hard wrapping are joined.

    Args:
        text: any text.
        language: ISO 639-1 code of a language pysbd knows.
        since: units that end before this character are returned whole, which saves time.

    Raises:
        InputError: pysbd does not know the language.
    """
    require_language(language)
    segmenter = pysbd.Segmenter(language=language, clean=False)
    spans: list[Span] = []
    for start, end in _units(text):
        if end < since:
            spans.append((start, end))
        else:
            spans += _sentences(segmenter, text, start, end)
    return spans


def sentence_gaps(text: str, language: str = "en", *, since: int = 0) -> list[Span]:
    """Character ranges of the white space, perhaps none, between sentences (`sentence_spans`)."""
    spans = sentence_spans(text, language, since=since)
    return [(before[1], after[0]) for before, after in pairwise(spans)]


def require_language(language: str) -> None:
    """Raise InputError unless sentences of this language (ISO 639-1) can be told apart."""
    if language not in LANGUAGE_CODES:
        raise InputError(
            f"unknown sentence language {language!r}",
            hint=f"choose one of {', '.join(sorted(LANGUAGE_CODES))}",
        )


def _sentences(segmenter: pysbd.Segmenter, text: str, start: int, end: int) -> list[Span]:
    # A wrapped line's break means a space; both are one character, so positions stay true.
    unit = text[start:end].replace("\n", " ")
    marker = MARKER.match(unit)
    body = cursor = marker.end() if marker else 0
    starts = [0]
    for sentence in segmenter.segment(unit[body:]):
        # pysbd leaves out sentences with rare characters: they join the one before.
        found = unit.find(sentence.strip(), cursor)
        if found > body:
            starts.append(found)
        cursor = max(cursor, found + len(sentence.strip()))
    return [
        (start + first, start + first + len(unit[first:last].rstrip()))
        for first, last in pairwise([*starts, len(unit)])
    ]


def _units(text: str) -> Iterator[Span]:
    lines: list[Span] = []
    for match in re.finditer(r"[^\n]+", text):
        if match.group().isspace():
            continue
        line = match.start(), match.start() + len(match.group().rstrip())
        if lines and "\n" in text[lines[-1][1] : line[0]].replace("\n", "", 1):
            yield from _joined(text, lines)
            lines = []
        lines.append(line)
    yield from _joined(text, lines)


def _joined(text: str, lines: list[Span]) -> Iterator[Span]:
    """The lines of one paragraph, joined where they were broken only to fit a width."""
    width = max((end - start for start, end in lines), default=0)
    breaks = [_is_full(text, before, after, width) for before, after in pairwise(lines)]
    wrapped = width in _WRAP_WIDTHS and sum(breaks) >= _WRAPPED_SHARE * len(breaks)
    first = 0
    for last in range(1, len(lines) + 1):
        soft = wrapped and last < len(lines) and breaks[last - 1]
        if not soft or MARKER.match(text[slice(*lines[last])].lstrip()):
            start, end = lines[first][0], lines[last - 1][1]
            start += len(text[start:end]) - len(text[start:end].lstrip())
            yield from _bounded(text, start, end)
            first = last


def _is_full(text: str, line: Span, following: Span, width: int) -> bool:
    """Whether the next line's first word would not have fitted on this line."""
    word = WORD.search(text, *following)
    return word is None or line[1] - line[0] + 1 + len(word.group()) > width - _WRAP_RAGGED


def _bounded(text: str, start: int, end: int) -> Iterator[Span]:
    while end - start > _LONGEST_UNIT:
        limit = start + _LONGEST_UNIT
        cut = text.rfind(". ", start, limit) + 1 or text.rfind(" ", start, limit) + 1 or limit
        yield start, start + len(text[start:cut].rstrip())
        start = cut + len(text[cut:end]) - len(text[cut:end].lstrip())
    if start < end:
        yield start, end


@dataclass(frozen=True)
class SentenceExtractor(Extractor):
    """Sentences, long ones cut at clause boundaries: candidates without any language model.

    Every candidate is a verbatim substring. Headings and list items are candidates of their own,
    without their marker; what holds no letter or digit is dropped.

    Args:
        max_words: a longer sentence is cut: between clauses, else at commas, else by count.
        min_words: no cut leaves a piece shorter than this.
        language: ISO 639-1 code of a language pysbd knows.

    Raises:
        InputError: an unknown language, or not `1 <= min_words <= max_words / 2`.
    """

    max_words: int = 40
    min_words: int = 5
    language: str = "en"

    def __post_init__(self) -> None:
        require_language(self.language)
        if not 1 <= self.min_words <= self.max_words / 2:
            raise InputError(
                f"min_words={self.min_words} does not go with max_words={self.max_words}",
                hint="choose min_words from 1 to half of max_words",
            )

    def extract(self, text: str) -> list[str]:
        """Sentences and clauses of a text, verbatim, in document order."""
        candidates = []
        for start, end in sentence_spans(text, self.language):
            marker = MARKER.match(text, start, end)
            pieces = self._pieces(text, marker.end() if marker else start, end)
            candidates += [text[first:last] for first, last in pieces]
        return [candidate for candidate in candidates if _LETTER_OR_DIGIT.search(candidate)]

    def _pieces(
        self, text: str, start: int, end: int, gaps: tuple[re.Pattern[str], ...] | None = None
    ) -> list[Span]:
        gaps = (CLAUSE_GAP, _COMMA_GAP) if gaps is None else gaps
        words = [match.span() for match in WORD.finditer(text, start, end)]
        if len(words) <= self.max_words:
            return [(start, end)]
        if not gaps:
            return self._counted(words)
        pieces = []
        for gap in gaps[0].finditer(text, start, end):
            before, after = (
                WORD.findall(text, start, gap.start()),
                WORD.findall(text, gap.end(), end),
            )
            if min(len(before), len(after)) >= self.min_words:
                pieces.append((start, gap.start()))
                start = gap.end()
        pieces.append((start, end))
        return [part for piece in pieces for part in self._pieces(text, *piece, gaps[1:])]

    def _counted(self, words: list[Span]) -> list[Span]:
        count = -(-len(words) // self.max_words)
        size = -(-len(words) // count)
        runs = [words[first : first + size] for first in range(0, len(words), size)]
        return [(run[0][0], run[-1][1]) for run in runs]
