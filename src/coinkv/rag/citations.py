"""Citations: which part of an answer is supported by which piece of evidence."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from rapidfuzz.distance import Prefix

from coinkv.rag.answer import Evidence

SUPPORT = 0.65
"""Least share of a part's words, weighted by rarity, that evidence must hold to be cited."""
MOST = 2
"""Most citations of a sentence."""
_NEARLY = 0.9  # a second piece is cited, too, if it holds so much of what the best one holds
_ADDS = 0.2  # of two pieces that only together support a part, each must add this share
_SAME_STEM = 2 / 3
_WINDOW, _STEP = 60, 20  # words of a long piece that are looked at together: about three sentences
_SMALL = 0.2  # weight of words of up to three letters, most of which hold sentences together
_CLAUSE = 3  # words that are not small in a clause that is cited alone: "in 1986," states nothing
_BEGINNING = 4  # letters that two forms of a word share at least

# scripts that do not set words apart (Thai to Khmer, kana, Han), and marks that are part of a word
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_MARKS = "\u0300-\u036f\u0591-\u05c7\u064b-\u065f\u0900-\u0dff"
_TOKEN = re.compile(rf"\d+(?:[.,]\d+)*|[{_UNSPACED}]+|(?:[^\W\d_{_UNSPACED}]|[{_MARKS}])+")
_UNSPACED_RUN = re.compile(rf"[{_UNSPACED}]+")
_HIRAGANA = re.compile("[\u3040-\u309f]+")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_SENTENCE_END = re.compile(r"[.!?…]+[\"'”’»)\]]*(?=\s)|[。！？．]+[」』”]?|\n")
_ABBREVIATION = re.compile(r"(?:\b\w|\b(?:Dr|Mr|Mrs|Ms|Prof|St|No|Fig|vs|cf|al|approx|bzw|Nr))\.$")
_ITEM = re.compile(r"\s*(?:(?:[-*•–]|\d{1,3}[.)])\s+)?")
_CLAUSE_END = re.compile(r"[;:](?=\s)|,(?=\s)|[，；：、]|\s[–—-](?=\s)|—")


@dataclass(frozen=True)
class Citation:
    """A part of an answer that a piece of evidence supports.

    Attributes:
        start: first character of the part in the answer's text.
        end: one past its last character.
        evidence: index of the piece in the answer's evidence.
    """

    start: int
    end: int
    evidence: int


@dataclass(frozen=True)
class _Word:
    """A word as it is compared.

    Attributes:
        key: its letters, case folded; of a script without spaces, two neighbouring characters.
        must: a number or a name: evidence without it supports nothing.
        small: hardly more than grammar.
    """

    key: str
    must: bool
    small: bool


def cite(answer_text: str, evidence: Sequence[Evidence]) -> tuple[Citation, ...]:
    """What supports the sentences of an answer, or their clauses, in the order of the answer.

    A sentence is supported by a piece that has most of its words, weighted by their rarity in the
    evidence, and every number and name in it; or by two such pieces together. Where that fails, its
    clauses are looked at one by one. What nothing supports is not cited. The measure is lexical: it
    cannot tell whether a "not" was left out.

    Args:
        answer_text: the answer.
        evidence: what stood in the context, best first; of equal ones the earlier is cited.

    Returns:
        at most two citations a sentence, by place in the answer, then by support.
    """
    if not evidence:
        return ()
    library = _Library(evidence, answer_text)
    found: list[Citation] = []
    for start, end in _sentences(answer_text):
        chosen = library.supporting(_words(answer_text[start:end]))
        cited = [Citation(start, end, number) for number in chosen]
        if not cited:
            for first, last in _clauses(answer_text, start, end):
                words = _words(answer_text[first:last], begins=first == start)
                named = answer_text[:first].rstrip().endswith((":", "："))  # "The answer is: 1972"
                enough = named or sum(not word.small for word in words) >= _CLAUSE
                best = library.supporting(words)[:1] if enough else []
                cited += [Citation(first, last, number) for number in best]
        found += cited[:MOST]
    return tuple(found)


class _Library:
    """Evidence as windows of words: in which windows a word stands, and how rare it is."""

    def __init__(self, evidence: Sequence[Evidence], answer: str) -> None:
        wanted = {key[:_BEGINNING] for key in _keys(answer)}  # of other words nothing is asked
        self._piece_of: list[int] = []  # of each window
        self._places: dict[str, set[int]] = {}  # windows of each word
        for number, piece in enumerate(evidence):
            keys = _keys(piece.text)
            windows = 1 + max(0, len(keys) - _WINDOW + _STEP - 1) // _STEP
            begin = len(self._piece_of)
            self._piece_of += [number] * windows
            for at, key in enumerate(keys):
                if key[:_BEGINNING] in wanted:
                    first = max(0, (at - _WINDOW) // _STEP + 1)
                    last = min(at // _STEP, windows - 1)
                    held = range(begin + first, begin + last + 1)
                    self._places.setdefault(key, set()).update(held)
            for key in _keys(piece.title):  # stands for what a sentence leaves to its heading
                self._places.setdefault(key, set()).update(range(begin, begin + windows))
        self._by_beginning: dict[str, list[str]] = {}
        for key in self._places:
            self._by_beginning.setdefault(key[:_BEGINNING], []).append(key)

    def supporting(self, words: Sequence[_Word]) -> list[int]:
        """Pieces that support these words alone or together, best first; at most two."""
        forms = [self._forms(word) for word in words]
        weights = [self._weight(word, its) for word, its in zip(words, forms, strict=True)]
        total = sum(weights)
        strong = {n for n, word in enumerate(words) if not word.small}
        musts = {n for n, word in enumerate(words) if word.must}
        if not strong or any(not forms[n] for n in musts):
            return []

        def share(held: set[int]) -> float:
            return sum(weights[n] for n in held) / total if held & strong else 0.0

        best = self._best(forms, lambda held: (musts <= held, share(held)))
        ranked = sorted(best, key=lambda number: (-share(best[number]), number))
        alone = [n for n in ranked if musts <= best[n] and share(best[n]) >= SUPPORT]
        if alone:
            least = _NEARLY * share(best[alone[0]])
            return [number for number in alone if share(best[number]) >= least][:MOST]
        for one, other in combinations(ranked[:5], 2):
            both = best[one] | best[other]
            adds = min(share(both - best[one]), share(both - best[other]))
            if musts <= both and share(both) >= SUPPORT and adds >= _ADDS:
                return [one, other]
        return []

    def _best(
        self,
        forms: Sequence[frozenset[str]],
        rank: Callable[[set[int]], tuple[bool, float]],
    ) -> dict[int, set[int]]:
        """By piece, the numbers of the words that its best window holds."""
        held: dict[int, set[int]] = {}
        for number, its in enumerate(forms):
            for key in its:
                for window in self._places[key]:
                    held.setdefault(window, set()).add(number)
        best: dict[int, set[int]] = {}
        for window, its_words in held.items():
            piece = self._piece_of[window]
            if piece not in best or rank(its_words) > rank(best[piece]):
                best[piece] = its_words
        return best

    def _weight(self, word: _Word, forms: frozenset[str]) -> float:
        """Inverse document frequency over the windows; a word of none counts as one of one."""
        windows = len(self._piece_of)
        held = min(windows, max(1, sum(len(self._places[key]) for key in forms)))
        rarity = math.log((windows + 2) / (held + 0.5))
        return _SMALL * rarity if word.small else rarity

    def _forms(self, word: _Word) -> frozenset[str]:
        """Words of the evidence that may stand for this one: it, or it with another ending."""
        if word.key in self._places:
            return frozenset((word.key,))
        near = self._by_beginning.get(word.key[:_BEGINNING], ())
        if len(word.key) < _BEGINNING or not word.key.isalpha():
            return frozenset()
        return frozenset(key for key in near if _same_stem(word, key))


def _same_stem(word: _Word, other: str) -> bool:
    """Whether two words differ in their endings only; a name may take on two letters more."""
    short, long = sorted((word.key, other), key=len)
    if long.startswith(short) and len(long) - len(short) <= (2 if word.must else 3):
        return True
    return not word.must and Prefix.normalized_similarity(short, long) >= _SAME_STEM


def _words(text: str, *, begins: bool = True) -> list[_Word]:
    """The words of a text; `begins`: its first word is written large in any case."""
    words: list[_Word] = []
    for token in _tokens(text):
        if _UNSPACED_RUN.fullmatch(token):
            words += [_Word(pair, False, bool(_HIRAGANA.fullmatch(pair))) for pair in _pairs(token)]
        elif token[0].isdigit():
            words.append(_Word(token, True, False))
        else:
            small = len(token) <= 3
            shouted = len(token) > 1 and token.isupper()
            large = token[0].isupper() and bool(words or not begins) and not small
            words.append(_Word(token.casefold(), shouted or large, small and not shouted))
    return words


def _keys(text: str) -> list[str]:
    """The keys of a text's words."""
    keys: list[str] = []
    for token in _tokens(text.casefold()):
        keys += _pairs(token) if _UNSPACED_RUN.match(token) else (token,)
    return keys


def _tokens(text: str) -> list[str]:
    return _TOKEN.findall(_THOUSANDS.sub("", unicodedata.normalize("NFKC", text)))


def _pairs(run: str) -> list[str]:
    """Neighbouring characters of a run without spaces."""
    return [run[at : at + 2] for at in range(max(1, len(run) - 1))]


def _sentences(text: str) -> Iterator[tuple[int, int]]:
    """Character ranges of the sentences, without blanks and the signs of list items."""
    ends = [found.end() for found in _SENTENCE_END.finditer(text) if _ends(text, found)]
    start = 0
    for end in [*ends, len(text)]:
        yield from _trimmed(text, start, end)
        start = end


def _ends(text: str, found: re.Match[str]) -> bool:
    """Whether a full stop ends a sentence: not in "Dr. Holm", "J. H. Gilbert", "1. The organ"."""
    if not found[0].startswith(".") or len(found[0].strip(".")) or len(found[0]) > 1:
        return True
    line = text[text.rfind("\n", 0, found.start()) + 1 : found.end()]
    after = text[found.end() :].lstrip()[:1]
    item = line.strip(" .").isdigit()
    return not (_ABBREVIATION.search(line) or after.islower() or item)


def _clauses(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Character ranges of the clauses of a sentence that has more than one."""
    ends = [found.end() for found in _CLAUSE_END.finditer(text, start, end)]
    for last in [*ends, end] if ends else []:
        yield from _trimmed(text, start, last, around=",;:—–-，；：、 \n")
        start = last


def _trimmed(
    text: str, start: int, end: int, around: str | None = None
) -> Iterator[tuple[int, int]]:
    """The range without what is blank around it; none where nothing is left."""
    item = _ITEM.match(text, start, end)
    start = item.end() if item else start
    end = start + len(text[start:end].rstrip(around))
    if start < end:
        yield start, end
