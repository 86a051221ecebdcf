"""What the composed context holds of what it should: gold passages and answer strings."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Sequence

from coinkv.evaluate.dataset import EvalRow
from coinkv.evaluate.metrics import normalised
from coinkv.rag.answer import Evidence

_GAP_CHARACTERS = 1
"""Between sentences next to each other stands a space, which belongs to no nugget."""

_PUNCTUATION_APART = str.maketrans(dict.fromkeys(string.punctuation, " "))


def evidence_recall(evidence: Sequence[Evidence], row: EvalRow) -> float | None:
    """Share of the row's gold passages of which some text stands in the context, from 0 to 1.

    Evidence is of a passage when the titles are equal and its text stands in the passage's, both as
    `coinkv.corpus.documents` keeps them, all white space alike.

    Returns:
        None when the row has no gold passage.
    """
    gold = [passage for passage in row.passages if passage.is_supporting]
    if not gold:
        return None
    found = [(_kept(piece.title), _kept(piece.text)) for piece in evidence]
    hits = 0
    for passage in gold:
        title, text = _kept(passage.title), _kept(passage.text)
        hits += any(title == of and piece and piece in text for of, piece in found)
    return hits / len(gold)


def answer_recall(evidence: Sequence[Evidence], row: EvalRow) -> float | None:
    """1.0 when some answer stands in the evidence in whole words, else 0.0.

    Answers and evidence are compared as the metrics normalise them, and once more with spaces for
    punctuation, since `Holm's` and `left(right)` hold the words `Holm` and `left`. Pieces of one
    chunk that are next to each other or overlap are read on, in the order of the document; no
    others are.

    Returns:
        None when there is nothing to look for: no answers, only yes or no, or no words in them.
    """
    answers = [answer for answer in row.answers if normalised(answer) not in ("", "yes", "no")]
    if not answers:
        return None
    texts = _read_on(evidence)
    return float(
        _stands_in(map(normalised, answers), map(normalised, texts))
        or _stands_in(map(_words_apart, answers), map(_words_apart, texts))
    )


def _stands_in(answers: Iterable[str], texts: Iterable[str]) -> bool:
    wanted = "|".join(re.escape(answer) for answer in answers if answer)
    words = re.compile(rf"(?<!\w)(?:{wanted})(?!\w)")
    return bool(wanted) and any(words.search(text) for text in texts)


def _words_apart(text: str) -> str:
    return normalised(text.translate(_PUNCTUATION_APART))


def _kept(text: str) -> str:
    # documents keeps no NUL, no byte order mark in front and no half of a surrogate pair
    text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return " ".join(text.replace("\0", "").replace("\ufeff", "").split())


def _read_on(evidence: Sequence[Evidence]) -> list[str]:
    """The evidence's texts, those of a chunk joined where one begins as the other ends."""
    texts: list[str] = []
    chunk, end = ("", -1), 0
    for piece in sorted(evidence, key=lambda each: (each.document, each.chunk, each.start)):
        gap = piece.start - end
        if (piece.document, piece.chunk) == chunk and gap <= _GAP_CHARACTERS:
            texts[-1] += " " * gap + piece.text[max(-gap, 0) :]
            end = max(end, piece.end)
        else:
            texts.append(piece.text)
            chunk, end = (piece.document, piece.chunk), piece.end
    return texts
