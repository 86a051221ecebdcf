"""Inspection: what a method put in the context, run by run, and how much of it was computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import groupby
from typing import Any, Literal, get_args

from coinkv.methods.base import Piece
from coinkv.rag.answer import Answer
from coinkv.rag.ask import AnswerStream, CoinRAG, FirstToken

Source = Literal["prompt", "chunk", "links"]
Kind = Literal["reused", "probed", "computed"]
_BYTES = 4
"""Most bytes, and so most tokens, of one character."""


@dataclass(frozen=True)
class ContextRun:
    """Tokens that stand side by side in the context, of one piece and computed in as many layers.

    Attributes:
        text: what they say, special tokens spelled out. A character made of several tokens stands
            where its last token is, so a run within a character is empty, as link tokens are.
        source: the system `prompt`, a retrieved `chunk`, or the `links` of KVLink.
        document: key of the chunk's document; None where the source is no chunk.
        title: that document's title.
        chunk: number of the chunk in the document, from 0.
        chunk_rank: the chunk's rank in the retrieval, from 0.
        start: first token, counted in the chunk (title header included), prompt or link tokens.
        tokens: how many tokens.
        layers_computed: in how many of the model's layers their KV was computed for this question.
        layers: how many layers the model has.
    """

    text: str
    source: Source
    document: str | None
    title: str | None
    chunk: int | None
    chunk_rank: int | None
    start: int
    tokens: int
    layers_computed: int
    layers: int

    @property
    def kind(self) -> Kind:
        """`reused` as stored, `probed` in some layers only, or `computed` in all of them."""
        if self.layers_computed == 0:
            return "reused"
        return "probed" if self.layers_computed < self.layers else "computed"


@dataclass(frozen=True)
class Inspection:
    """An answer and the context it was decoded behind.

    Attributes:
        answer: the answer, as `CoinRAG.ask` gives it.
        runs: the context from its first token to its last; neighbours of one piece differ in the
            layers computed.
    """

    answer: Answer
    runs: tuple[ContextRun, ...]

    @property
    def tokens(self) -> dict[Kind, int]:
        """How many tokens of the context are of each kind; they add up to Len."""
        kinds: tuple[Kind, ...] = get_args(Kind)
        return {kind: sum(run.tokens for run in self.runs if run.kind == kind) for kind in kinds}

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready facts: the answer's, the tokens of each kind, and the runs."""
        runs = [{**asdict(run), "kind": run.kind} for run in self.runs]
        return {**self.answer.to_dict(), "tokens": self.tokens, "runs": runs}


def inspect(asker: CoinRAG, question: str) -> Inspection:
    """Answer a question and keep what stood in the context.

    Raises:
        InputError: the question is empty, or does not fit into the context window.
    """
    first = asker.first_token(question, answer_tokens=asker.sampling.max_tokens)
    runs = tuple(_runs(asker, first))
    stream = AnswerStream(asker, first, asker.sampling)
    for _ in stream:
        pass
    return Inspection(stream.answer, runs)


def _runs(asker: CoinRAG, first: FirstToken) -> Iterator[ContextRun]:
    """The context's pieces, cut where the number of layers computed changes."""
    places = _Places(asker, first)
    computed = first.context.cache.layers_computed[: first.context_tokens].tolist()
    slot = 0
    for piece in first.context.pieces:
        of_piece = computed[slot : slot + len(piece)]
        slot += len(piece)
        start = piece.start
        for layers_computed, same in groupby(of_piece):
            tokens = len(list(same))
            yield places.run(piece, start, tokens, layers_computed)
            start += tokens


class _Places:
    """Where the context's tokens come from: texts, documents and titles by rank of the chunk."""

    def __init__(self, asker: CoinRAG, first: FirstToken) -> None:
        catalogue, bench = asker.index.catalogue, asker.bench
        hashes = [chunk.content_hash for chunk in first.retrieval.chunks]
        contents = catalogue.contents(hashes)
        decode = bench.backbone.text_tokenizer.decode
        self._contents = [contents[content_hash] for content_hash in hashes]
        self._placements = [catalogue.placements_of(content_hash)[0] for content_hash in hashes]
        self._prompt = _TokenText(decode, list(bench.prompt.prefix_ids))
        self._texts = [_TokenText(decode, c.token_ids.tolist()) for c in self._contents]
        self._layers = bench.backbone.shape.layers

    def run(self, piece: Piece, start: int, tokens: int, layers_computed: int) -> ContextRun:
        """The run of a piece that begins with its chunk's token `start`."""
        document = title = number = None
        source: Source
        if piece.chunk is not None:
            source, text = "chunk", self._texts[piece.chunk].cut(start, start + tokens)
            title = self._contents[piece.chunk].title
            document = self._placements[piece.chunk].document_key
            number = self._placements[piece.chunk].ordinal
        elif piece.linking:
            source, text = "links", ""
        else:
            source, text = "prompt", self._prompt.cut(start, start + tokens)
        return ContextRun(
            text=text,
            source=source,
            document=document,
            title=title,
            chunk=number,
            chunk_rank=piece.chunk,
            start=start,
            tokens=tokens,
            layers_computed=layers_computed,
            layers=self._layers,
        )


@dataclass(frozen=True, eq=False)
class _TokenText:
    """The text of tokens, to be cut between any two of them.

    Tokens are decoded together with all before them, since one of them alone may be part of a
    character only, or lose the space in front of it.
    """

    decode: Callable[..., str]
    token_ids: list[int]

    @cached_property
    def _whole(self) -> str:
        return self.decode(self.token_ids, skip_special_tokens=False)

    def cut(self, start: int, end: int) -> str:
        """The characters that the tokens `[start, end)` complete."""
        return self._whole[self._complete(start) : self._complete(end)]

    def _complete(self, end: int) -> int:
        """How many characters the first `end` tokens hold, those not complete left out.

        With byte fallback a character's first bytes make a whole run of bytes unreadable, so up to
        three tokens before are tried, too.
        """
        most = 0
        for last in range(end, max(end - _BYTES, 0), -1):
            text = self.decode(self.token_ids[:last], skip_special_tokens=False)
            while not self._whole.startswith(text):
                text = text[:-1]
            most = max(most, len(text))
        return most
