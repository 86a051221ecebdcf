"""Showing: a training row as the model sees it, its context composed and its answer behind it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from coinkv.errors import ContextLengthError
from coinkv.evaluate.dataset import EvalRow
from coinkv.kv.block import KVBlock
from coinkv.methods.base import Context, Method, Workbench
from coinkv.model.backbone import Backbone
from coinkv.model.clock import StageClock
from coinkv.retrieval.two_stage import Retrieval
from coinkv.train.learner import Learner
from coinkv.train.objectives import Objective
from coinkv.train.passes import PassRow, forward
from coinkv.train.recipe import Recipe


@dataclass(frozen=True, eq=False)
class Shown:
    """A row in one form: what a pass computes, and what it should say.

    Attributes:
        row: the pass's row; its last tokens are the answer's, but for the last.
        targets: int64 `[n]` tokens of the answer and the one that ends it; the logits behind the
            row's last n tokens are held against them.
    """

    row: PassRow
    targets: torch.Tensor


@dataclass(frozen=True, eq=False)
class Shower:
    """Shows rows by an objective.

    Attributes:
        learner: what computes live tokens, and the link tokens' embeddings.
        objective: the methods to show by.
        recipe: lengths and first words.
    """

    learner: Learner
    objective: Objective
    recipe: Recipe

    def shown(self, bench: Workbench, row: EvalRow, evidence: Retrieval) -> Iterator[Shown]:
        """A row in every form of the objective; none where even one chunk makes it too long.

        Args:
            bench: prompt and blocks, the stored or the fresh ones.
            row: question and answers, of which the first is shown.
            evidence: what it retrieved.
        """
        room = len(answer_ids(bench.backbone, row))
        for method in self.objective.forms:
            found = self.fitting(bench, method, row, evidence, room)
            if found is not None:
                yield self.behind(found, bench, row)

    def fitting(
        self,
        bench: Workbench,
        method: Method,
        row: EvalRow,
        evidence: Retrieval,
        answer_tokens: int,
    ) -> Context | None:
        """The context of a row, with as many of its chunks, best first, as `max_length` holds.

        Args:
            bench: prompt and blocks.
            method: makes the context.
            row: the row.
            evidence: what it retrieved.
            answer_tokens: room for the answer.

        Returns:
            None where not even one chunk fits.
        """
        room = len(bench.prompt.suffix_ids(row.question, self.recipe.answer_lead)) + answer_tokens
        for chunks in range(len(evidence.chunks), 0, -1):
            kept = _best(evidence, chunks)
            try:
                context = method.compose(bench, kept, room, StageClock(bench.backbone.synchronize))
            except ContextLengthError:
                continue
            if context.len_tokens + room <= self.recipe.max_length:
                return self._linked(context)
        return None

    def _linked(self, context: Context) -> Context:
        """The context with the embeddings that are being learned in its link tokens."""
        links = self.learner.links
        if links is None:
            return context
        with torch.enable_grad():  # they learn, even where the context around them does not
            vectors = links.flatten(0, 1).unbind()
        embeddings = dict(enumerate(vectors[: len(context.live.token_ids)]))
        return replace(context, live=replace(context.live, embeddings=embeddings))

    def behind(self, context: Context, bench: Workbench, row: EvalRow) -> Shown:
        """A row's question and answer behind its context."""
        live, cache = context.live, context.cache
        suffix = bench.prompt.suffix_ids(row.question, self.recipe.answer_lead)
        answer = answer_ids(bench.backbone, row)
        said = (*suffix, *answer[:-1])
        start = int(cache.positions.max()) + 1
        positions = torch.cat([live.positions, torch.arange(start, start + len(said))])
        return Shown(
            PassRow(_ready(context), (*live.token_ids, *said), positions, live.embeddings),
            torch.tensor(answer),
        )


def answer_ids(backbone: Backbone, row: EvalRow) -> tuple[int, ...]:
    """Tokens of a row's first answer and the one that ends it."""
    ends = backbone.end_token_ids
    end = getattr(backbone.tokenizer, "eos_token_id", None)
    last = (end if end in ends else min(ends),) if ends else ()
    return (*backbone.tokenize(" ".join(row.answers[0].split())).ids, *last)


def loss_sum(backbone: Backbone, shown: Sequence[Shown], *, checkpointing: bool) -> torch.Tensor:
    """Cross-entropy on the answers' tokens, summed over them (paper arXiv 2608.07458, section 2.5).

    Args:
        backbone: computes with the weights that learn.
        shown: at least one; computed in one pass.
        checkpointing: see `coinkv.train.passes.forward`.
    """
    last = max(len(each.targets) for each in shown)
    passed = forward(backbone, [each.row for each in shown], last=last, checkpointing=checkpointing)
    if passed.logits is None:
        raise TypeError("the pass was asked for logits")
    logits = torch.cat([passed.logits[n, -len(s.targets) :] for n, s in enumerate(shown)])
    targets = torch.cat([each.targets for each in shown]).to(logits.device)
    return torch.nn.functional.cross_entropy(logits, targets, reduction="sum")


def _best(evidence: Retrieval, chunks: int) -> Retrieval:
    """The evidence of the best so many chunks."""
    nuggets = tuple(nugget for nugget in evidence.nuggets if nugget.chunk < chunks)
    return Retrieval(evidence.chunks[:chunks], nuggets)


def _ready(context: Context) -> KVBlock:
    """The KV of a context that need not be computed."""
    cache, live = context.cache, context.live.positions
    slots = (~torch.isin(cache.positions, live)).nonzero()[:, 0]
    length = cache.length
    keys, values = cache.keys[:, :, :length], cache.values[:, :, :length]
    if len(slots) < length:
        keys, values = keys[:, :, slots], values[:, :, slots]
    return KVBlock(keys, values, cache.positions[slots].clone())
