"""A question to an index, answered by CoinRAG or one of the methods it is compared with."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, replace

from coinkv.methods.base import Method
from coinkv.model.backbone import Backbone
from coinkv.model.chat import Message
from coinkv.model.decode import Sampling
from coinkv.model.decode_batch import Decoded
from coinkv.rag.adapters import LoadedAdapter
from coinkv.rag.answer import Answer
from coinkv.rag.ask import CoinRAG, FirstToken
from coinkv.rag.citations import Citation, cite
from coinkv.rag.condense import CondenseMode, Generate, condense
from coinkv.rag.index import Index
from coinkv.serve.scheduler.task import Begun, Task


@dataclass(frozen=True)
class QuestionOptions:
    """How a question is answered; what is None is as the server does it.

    Attributes:
        method: how the context is made.
        k_chunks: most chunks retrieved.
        k_nuggets: most nuggets retrieved.
        answer_lead: first words of the answer.
        condense: how earlier turns become part of the question.
        first_line: the answer ends with its first line.
    """

    method: Method
    k_chunks: int | None = None
    k_nuggets: int | None = None
    answer_lead: str = ""
    condense: CondenseMode | None = None
    first_line: bool = True


@dataclass(frozen=True)
class QuestionResult:
    """What `Done.result` of a question is.

    Attributes:
        answer: the first choice, with its evidence and times.
        question: as it was asked of the index, earlier turns condensed into it.
        citations: of every choice, which part of it which evidence supports.
    """

    answer: Answer
    question: str
    citations: tuple[tuple[Citation, ...], ...]


@dataclass(frozen=True, eq=False)
class _Asked:
    """A question that has begun, and what it holds until it ends."""

    asker: CoinRAG
    first: FirstToken
    question: str
    held: ExitStack


class QuestionTask(Task):
    """The last message of a chat, asked of an index.

    `Done.result` is a `QuestionResult`; `Begun.facts` has `question` (condensed), `method`,
    `adapter` (its name and digest, or None), `len_tokens`, `suffix_tokens` and `evidence`, a tuple
    of `coinkv.rag.answer.Evidence`.

    Args:
        open_index: gives the index for as long as the question needs it.
        backbone: the index's model.
        adapter: answers in its place, if given; earlier turns are condensed without it.
        messages: a chat; its last message is the question.
        options: how to answer, nothing of it None but the numbers of pieces.
        answer_tokens: room for the answer.
        generate: has the model continue a chat, to condense it.
    """

    kind = "question"

    def __init__(
        self,
        open_index: Callable[[], AbstractContextManager[Index]],
        backbone: Backbone,
        adapter: LoadedAdapter | None,
        messages: Sequence[Message],
        options: QuestionOptions,
        *,
        answer_tokens: int,
        generate: Generate,
    ) -> None:
        self.backbone = backbone if adapter is None else adapter.view
        self._adapter = adapter
        self._open_index, self._messages, self._options = open_index, messages, options
        self._answer_tokens, self._generate = answer_tokens, generate

    def adapted(self, sampling: Sampling) -> Sampling:
        """Answers are trimmed, and end with a line unless more is wanted."""
        first_line = sampling.first_line or self._options.first_line
        return replace(sampling, first_line=first_line, trimmed=True)

    def begin(self) -> Begun:
        """Condense, retrieve, compose and prefill.

        Raises:
            InputError: the question is empty or too long, or an option does not exist.
            NotReadyError: there is nothing in the index yet.
        """
        started = time.perf_counter()
        options = self._options
        with ExitStack() as held:
            index = held.enter_context(self._open_index())
            asker = CoinRAG(
                index,
                method=options.method,
                k_chunks=_at_most(options.k_chunks, index.vectors.chunks),
                k_nuggets=_at_most(options.k_nuggets, index.vectors.nuggets),
                answer_lead=options.answer_lead,
                adapter=self._adapter,
            )
            mode = options.condense or "auto"
            question = condense(self._messages, mode, generate=self._generate)
            prepared = time.perf_counter() - started
            first = asker.first_token(question, answer_tokens=self._answer_tokens)
            asked = _Asked(asker, first, question, held.pop_all())
        return self._begun(asked, prepared)

    def end(
        self, begun: Begun, answers: Sequence[Decoded], decode_seconds: float
    ) -> QuestionResult:
        """The answer with its evidence; the index is let go."""
        asked: _Asked = begun.carried
        with asked.held:
            decoded = answers[0] if answers else Decoded("", (), "length")
            answer = asked.asker.complete(
                asked.first, decoded, decode_seconds, begun.facts["evidence"]
            )
            citations = tuple(cite(each.text, answer.evidence) for each in answers)
            return QuestionResult(answer, asked.question, citations)

    def _begun(self, asked: _Asked, prepared: float) -> Begun:
        first, cache = asked.first, asked.first.context.cache
        clock = first.clock
        return Begun(
            cache=cache,
            logits=first.logits,
            prompt_tokens=cache.length,
            cached_tokens=int((cache.layers_computed == 0).sum()),
            ttft_seconds=prepared + clock.total_seconds,
            stages_seconds={"prepare": prepared, **clock.stages_seconds},
            facts={
                "question": asked.question,
                "method": asked.asker.method.name,
                "adapter": None if self._adapter is None else asdict(self._adapter.used),
                "len_tokens": first.context_tokens,
                "suffix_tokens": len(first.suffix_ids),
                "blocks_missing": first.context.counts.missing,
                "blocks_damaged": first.context.counts.damaged,
                "evidence": asked.asker.evidence(first),
            },
            carried=asked,
        )


def _at_most(asked: int | None, available: int) -> int | None:
    """What a client asks for, of an index that others may make smaller meanwhile."""
    return None if asked is None or not available else min(asked, available)
