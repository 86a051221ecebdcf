"""How right an answer is: token F1 and exact match, as LongBench and SQuAD score them."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

from coinkv.errors import InputError

_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLE = re.compile(r"\b(?:a|an|the)\b")


def normalised(text: str) -> str:
    """A text as both metrics compare it.

    Lower case; ASCII punctuation taken out, so that `St.-Louis` is one word; then the articles a,
    an, the taken out; words one space apart (SQuAD, arXiv 1606.05250, evaluation script). Other
    punctuation stays, as in the published scores.
    """
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_WITHOUT_PUNCTUATION)).split())


def token_f1(prediction: str, answers: Sequence[str]) -> float:
    """Token F1 from 0 to 100, the best over the answers.

    The harmonic mean of the shares of the predicted and of the right words that are common to both,
    repeated words counted as often as they stand in both, as LongBench scores its English question
    answering sets (arXiv 2308.14508, metrics). Where nothing is left of either text it is 0.

    Raises:
        InputError: no answers.
    """
    said = normalised(prediction).split()
    return max(_f1(said, normalised(answer).split()) for answer in _some(answers))


def exact_match(prediction: str, answers: Sequence[str]) -> float:
    """100 when the prediction is one of the answers, both normalised, else 0.

    Yes and no are words like others. What has no words matches nothing, as in `token_f1`; SQuAD's
    script would call two texts without words equal.

    Raises:
        InputError: no answers.
    """
    said = normalised(prediction)
    return 100.0 * any(said == normalised(answer) != "" for answer in _some(answers))


def _f1(said: Sequence[str], right: Sequence[str]) -> float:
    common = (Counter(said) & Counter(right)).total()
    return 200 * common / (len(said) + len(right)) if common else 0.0


def _some(answers: Sequence[str]) -> Sequence[str]:
    if not answers:
        raise InputError("no answers to compare with", hint="score only rows that have answers")
    return answers
