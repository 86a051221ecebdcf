"""Development scores: loss and F1 of the weights as they are at this moment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from coinkv.evaluate.metrics import exact_match, token_f1
from coinkv.model.decode import Sampling
from coinkv.model.decode_batch import decode_batch
from coinkv.rag.ask import prefilled
from coinkv.train.composing import Composer
from coinkv.train.data import TrainingRow
from coinkv.train.showing import loss_sum

_BATCH = 8


@dataclass(frozen=True)
class DevScores:
    """Scores over development questions.

    Attributes:
        loss: cross-entropy of an answer's token, the mean over all of them.
        f1: mean token F1 of the answers decoded greedily, 0 to 100.
        exact_match: mean, 0 to 100.
        questions: how many were asked.
        seconds: wall clock.
    """

    loss: float
    f1: float
    exact_match: float
    questions: int
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


@dataclass(frozen=True)
class Sums:
    """What scores are made of, so that several processes can add theirs up."""

    loss: float = 0.0
    tokens: int = 0
    f1: float = 0.0
    exact: float = 0.0
    questions: int = 0

    def __add__(self, other: Sums) -> Sums:
        return Sums(
            self.loss + other.loss,
            self.tokens + other.tokens,
            self.f1 + other.f1,
            self.exact + other.exact,
            self.questions + other.questions,
        )

    def scores(self, seconds: float) -> DevScores:
        """The means."""
        questions, tokens = max(1, self.questions), max(1, self.tokens)
        return DevScores(
            self.loss / tokens,
            self.f1 / questions,
            self.exact / questions,
            self.questions,
            seconds,
        )


def dev_sums(
    composer: Composer,
    rows: Sequence[TrainingRow],
    *,
    answer_tokens: int,
    tell: Callable[[int, int], None],
) -> Sums:
    """Ask rows by the objective's method, each with the evidence of its own passages.

    Args:
        composer: makes contexts with the weights as they are.
        rows: questions with answers and passages; those too long for the recipe score 0.
        answer_tokens: most tokens of an answer.
        tell: told of questions done and of all.
    """
    total = Sums()
    for start in range(0, len(rows), _BATCH):
        batch = rows[start : start + _BATCH]
        total += _asked(composer, batch, answer_tokens)
        tell(start + len(batch), len(rows))
    return total


def _asked(composer: Composer, rows: Sequence[TrainingRow], answer_tokens: int) -> Sums:
    shower, view = composer.shower, composer.learner.view
    found = [composer.evidence(row) for row in rows]
    method = shower.objective.method
    with composer.bench() as bench, torch.no_grad():
        contexts = [
            shower.fitting(bench, method, row.row, evidence, answer_tokens)
            for row, evidence in zip(rows, found, strict=True)
        ]
    asked = [(row, c) for row, c in zip(rows, contexts, strict=True) if c is not None]
    if not asked:
        return Sums(questions=len(rows))
    shown = [shower.behind(context, bench, row.row) for row, context in asked]
    with view.computing():
        loss = float(loss_sum(view, shown, checkpointing=False))
    tokens = sum(len(each.targets) for each in shown)
    lead = shower.recipe.answer_lead
    suffixes = [bench.prompt.suffix_ids(row.row.question, lead) for row, _ in asked]
    logits = [
        prefilled(view, context, suffix)
        for (_, context), suffix in zip(asked, suffixes, strict=True)
    ]
    answers = decode_batch(
        view, [c.cache for _, c in asked], logits, Sampling(answer_tokens, first_line=True)
    )
    texts = [answer.text.strip() for answer in answers]
    pairs = [(text, row.row.answers) for text, (row, _) in zip(texts, asked, strict=True)]
    return Sums(
        loss,
        tokens,
        sum(token_f1(text, right) for text, right in pairs),
        sum(exact_match(text, right) for text, right in pairs),
        len(rows),
    )
