"""Which training rows stand in evaluation sets, word for word or nearly so."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from rapidfuzz import process
from rapidfuzz.distance import Indel

from coinkv.evaluate.dataset import EvalRow, EvalSet

Kind = Literal["question", "id", "gold passage", "similar question"]

SIMILAR = 0.9
"""From this similarity on, a question is nearly another."""
ID_CHARACTERS = 8
"""Shorter ids, such as 17 or nq_3, are numbers in a file and name no row outside it."""
HEAD_CHARACTERS = 200
"""A passage that holds so many first characters of another is the same passage."""

_HEAD_WORDS = 8
_SIMILARITIES_AT_ONCE = 1 << 21  # float64: 16 MB
_BETWEEN_WORDS = re.compile(r"[\W_]+")
_ARTICLE = re.compile(r"\b(?:a|an|the)\b")

_Rows = Sequence[tuple[str, EvalRow]]
"""Rows with the name of their set."""
_Matches = Iterator[tuple[int, int, float]]
"""Number of a training row, number of an evaluation row, similarity."""


@dataclass(frozen=True)
class Duplicate:
    """A training row that stands in an evaluation set.

    Attributes:
        kind: what they share, the first that holds of `question`, `id`, `gold passage`,
            `similar question`.
        training_set: name of its set.
        training_id: its id there.
        evaluation_set: name of the evaluation set.
        evaluation_id: the row there.
        similarity: of what they share, `SIMILAR` to 1.
        training_question: as it is written.
        evaluation_question: as it is written.
    """

    kind: Kind
    training_set: str
    training_id: str
    evaluation_set: str
    evaluation_id: str
    similarity: float
    training_question: str
    evaluation_question: str


@dataclass(frozen=True)
class DuplicateReport:
    """What `duplicates` found.

    Attributes:
        found: at most one a training row and evaluation set, in the order of the training rows.
        compared: number of training rows by name of their set.
        against: number of evaluation rows by name of their set.
    """

    found: tuple[Duplicate, ...]
    compared: dict[str, int]
    against: dict[str, int]

    @cached_property
    def kinds(self) -> dict[tuple[str, str], Kind]:
        """Set and id of each training row to leave out, with the first kind that holds anywhere.

        Similar questions are left out, too: a few rows are no loss, a leak is.
        """
        strongest: dict[tuple[str, str], Kind] = {}
        for each in sorted(self.found, key=lambda each: get_args(Kind).index(each.kind)):
            strongest.setdefault((each.training_set, each.training_id), each.kind)
        return strongest

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """How many rows to leave out, by set and kind."""
        counts: dict[str, dict[str, int]] = {name: {} for name in self.compared}
        for (set_name, _), kind in self.kinds.items():
            counts[set_name][kind] = counts[set_name].get(kind, 0) + 1
        return counts

    @property
    def facts(self) -> dict[str, Any]:
        """JSON-ready: rows compared by set, `counts`, every match."""
        return {
            "compared": self.compared,
            "against": self.against,
            "found": self.counts,
            "matches": [asdict(each) for each in self.found],
        }

    def lines(self, most: int = 10) -> list[str]:
        """What to show a person: a line each set, then at most so many matches.

        Plain text: what looks like mark-up in a question is not.
        """
        lines = []
        for name, kinds in self.counts.items():
            of = f"{sum(kinds.values()):,} of {self.compared[name]:,} rows"
            reasons = ", ".join(f"{kind} {count:,}" for kind, count in kinds.items())
            lines.append(f"{name}: {of} stand in evaluation sets" + (reasons and f" ({reasons})"))
        for each in self.found[:most]:
            here = f"{each.training_set} {each.training_id}: {each.training_question}"
            there = f"{each.evaluation_set} {each.evaluation_id}: {each.evaluation_question}"
            lines.append(f"{each.kind} {each.similarity:.2f} | {here} | {there}")
        more = len(self.found) - most
        return [*lines, f"and {more:,} more"] if more > 0 else lines


def duplicates(training: Sequence[EvalSet], evaluation: Sequence[EvalSet]) -> DuplicateReport:
    """Compare every training row with every evaluation row.

    Texts are compared as words: NFKC, case folded, punctuation as white space, without the articles
    a, an, the. Of one training row and one evaluation set the first kind that holds is reported:

    - `question`: the same words.
    - `id`: the same id of at least `ID_CHARACTERS` that a row brought along.
    - `gold passage`: a supporting passage with the same words, or one that holds the other or its
      first `HEAD_CHARACTERS` (one of under 8 words: the same words only). Titles do not count.
      Supporting are the passages labelled so, and the only passage of a row without labels.
    - `similar question`: an Indel similarity of at least `SIMILAR`, words as they stand or sorted.
      It is an estimate: questions made from one template may differ in a short name only.
    """
    ours = [(each.name, row) for each in training for row in each.rows]
    theirs = [(each.name, row) for each in evaluation for row in each.rows]
    words = [_words(row.question) for _, row in ours], [_words(row.question) for _, row in theirs]
    found: dict[tuple[int, str], Duplicate] = {}
    matches = (_equal(*words), _equal(_ids(ours), _ids(theirs)), _passages(ours, theirs))
    for kind, pairs in zip(get_args(Kind), (*matches, _similar(*words)), strict=True):
        for n, m, similarity in pairs:
            (set_name, row), (other_name, other) = ours[n], theirs[m]
            if (n, other_name) not in found:
                found[n, other_name] = Duplicate(
                    kind,
                    set_name,
                    row.id,
                    other_name,
                    other.id,
                    similarity,
                    row.question,
                    other.question,
                )
    return DuplicateReport(
        tuple(found[key] for key in sorted(found)),
        dict(Counter(name for name, _ in ours)),
        dict(Counter(name for name, _ in theirs)),
    )


def _words(text: str) -> str:
    """A text as it is compared: its words, one space apart."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(_ARTICLE.sub(" ", _BETWEEN_WORDS.sub(" ", folded)).split())


def _ids(rows: _Rows) -> list[str]:
    """Ids by number of row, empty where an id means nothing in another file."""
    ids = []
    for _, row in rows:
        brought = row.document or row.id
        by_line = brought == row.where.rpartition(", ")[2]
        ids.append("" if by_line or len(brought) < ID_CHARACTERS else row.id)
    return ids


def _equal(ours: Sequence[str], theirs: Sequence[str]) -> _Matches:
    where = _numbers(theirs)
    for n, text in enumerate(ours):
        for m in where.get(text, ()) if text else ():
            yield n, m, 1.0


def _numbers(keys: Sequence[Hashable]) -> dict[Hashable, list[int]]:
    numbers: dict[Hashable, list[int]] = defaultdict(list)
    for n, key in enumerate(keys):
        numbers[key].append(n)
    return numbers


def _passages(ours: _Rows, theirs: _Rows) -> _Matches:
    here, there = _supporting(ours), _supporting(theirs)
    for i, j in _holding([text for _, text in here], [text for _, text in there]):
        yield here[i][0], there[j][0], 1.0
    for j, i in _holding([text for _, text in there], [text for _, text in here]):
        yield here[i][0], there[j][0], 1.0


def _supporting(rows: _Rows) -> list[tuple[int, str]]:
    """The supporting passages of all rows, each with the number of its row."""
    found = []
    for n, (_, row) in enumerate(rows):
        only = len(row.passages) == 1 and row.passages[0].is_supporting is None
        gold = [passage for passage in row.passages if passage.is_supporting or only]
        found += [(n, words) for passage in gold if (words := _words(passage.text))]
    return found


def _holding(texts: Sequence[str], others: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Pairs of a text and another whose head stands in it.

    A look-up of every run of `_HEAD_WORDS` words finds the candidates: searching each text for each
    head would take their product.
    """
    heads = _numbers([tuple(other.split()[:_HEAD_WORDS]) for other in others])
    for n, text in enumerate(texts):
        words = text.split()
        for start in range(max(1, len(words) - _HEAD_WORDS + 1)):
            for m in heads.get(tuple(words[start : start + _HEAD_WORDS]), ()):
                if others[m][:HEAD_CHARACTERS] in text:
                    yield n, m


def _similar(ours: Sequence[str], theirs: Sequence[str]) -> _Matches:
    if not theirs:
        return
    rows = max(1, _SIMILARITIES_AT_ONCE // len(theirs))
    for start in range(0, len(ours), rows):
        block = ours[start : start + rows]
        similarity = np.maximum(_indel(block, theirs), _indel(_sorted(block), _sorted(theirs)))
        pairs = np.argwhere(similarity >= SIMILAR)
        order = np.argsort(-similarity[tuple(pairs.T)], kind="stable")  # a row's best comes first
        for n, m in pairs[order].tolist():
            if block[n] and theirs[m]:
                yield start + n, m, float(similarity[n, m])


def _sorted(texts: Sequence[str]) -> list[str]:
    return [" ".join(sorted(text.split())) for text in texts]


def _indel(ours: Sequence[str], theirs: Sequence[str]) -> NDArray[np.float64]:
    """Normalised Indel similarity of each to each, 0 to 1, 0 below `SIMILAR`: [ours, theirs]."""
    return process.cdist(
        ours,
        theirs,
        scorer=Indel.normalized_similarity,
        score_cutoff=SIMILAR,
        dtype=np.float64,
        workers=1,
    )
