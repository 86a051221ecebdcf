"""What a method is: one function from retrieved evidence to a context."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch

from coinkv.kv.block import KVBlock
from coinkv.methods.blocks import ChunkBlocks, ChunkTokens, ReadCounts
from coinkv.model.backbone import Backbone
from coinkv.model.clock import StageClock
from coinkv.model.fill import LiveCache
from coinkv.model.narrow import Narrowing
from coinkv.model.prompt import Prompt
from coinkv.model.threads import one_thread
from coinkv.retrieval.two_stage import Retrieval

_SMALL_CONTEXT = 1024
"""Up to so many tokens, placing blocks is a matter of a few milliseconds on one CPU thread."""


@dataclass(frozen=True)
class Piece:
    """A run of tokens of the context and where it comes from.

    Attributes:
        start: first token in the token ids of its chunk.
        end: one past the last token.
        chunk: rank of the retrieved chunk it is of; None for the prefix and for link tokens.
        linking: these are link tokens (KVLink), which stand for no text.
    """

    start: int
    end: int
    chunk: int | None = None
    linking: bool = False

    def __len__(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class Live:
    """Tokens of the context that are computed in one pass with the question.

    Attributes:
        token_ids: the tokens.
        positions: int64 `[n]`, ascending, all before the question.
        embeddings: input vectors `[hidden]` that replace those of the tokens at these indices.
        narrowing: leaves tokens out of later layers while the pass runs.
    """

    token_ids: tuple[int, ...] = ()
    positions: torch.Tensor = field(default_factory=lambda: torch.arange(0))
    embeddings: dict[int, torch.Tensor] = field(default_factory=dict)
    narrowing: Narrowing | None = None


@dataclass
class Context:
    """`C_ctx`: what stands before the question.

    Attributes:
        cache: KV that is ready, with slots reserved for what is not and room for question and
            answer. Its slots stand in the order of the context.
        pieces: what the slots hold, in order.
        live: tokens that are to be computed together with the question; none when all KV is
            reused.
        counts: what reading stored blocks cost.
    """

    cache: LiveCache
    pieces: tuple[Piece, ...]
    live: Live = field(default_factory=Live)
    counts: ReadCounts = field(default_factory=ReadCounts)

    @property
    def len_tokens(self) -> int:
        """Len: tokens before the question, whether reused or computed."""
        return sum(map(len, self.pieces))


@dataclass(frozen=True)
class Workbench:
    """What every method works with: the prompt around the evidence, and the chunks' blocks.

    Attributes:
        prompt: the prompt.
        blocks: the chunks' blocks.
        backbone: computes what is live; the model that made the blocks, perhaps with an adapter.
    """

    prompt: Prompt
    blocks: ChunkBlocks
    backbone: Backbone

    def context(self, tokens: int, room: int) -> LiveCache:
        """An empty cache for `tokens` of context and `room` more for question and answer.

        Raises:
            InputError: they do not fit into the context window.
        """
        self.backbone.require_room(tokens + room, "the retrieved context with question and answer")
        return LiveCache.for_backbone(self.backbone, tokens + room)

    def token_ids(self, pieces: Iterable[Piece], evidence: Retrieval) -> tuple[int, ...]:
        """The tokens of pieces joined; link tokens are 0."""
        ids: list[int] = []
        read: dict[int, ChunkTokens] = {}  # a chunk of many pieces is read once
        for piece in pieces:
            if piece.chunk is not None:
                if piece.chunk not in read:
                    content_hash = evidence.chunks[piece.chunk].content_hash
                    read[piece.chunk] = self.blocks.tokens_of(content_hash)
                ids += read[piece.chunk].token_ids[piece.start : piece.end]
            elif piece.linking:
                ids += [0] * len(piece)
            else:
                ids += self.prompt.prefix_ids
        return tuple(ids)

    @property
    def prefix_piece(self) -> Piece:
        """The system prompt as a piece of the context."""
        return Piece(0, len(self.prompt.prefix_ids))


class Method(ABC):
    """One way from retrieved evidence to `C_ctx`.

    A method is one file with one function to write, `compose`. Its options are dataclass fields.
    """

    name: ClassVar[str]
    unit: ClassVar[Literal["chunk", "nugget"]]
    """What it takes as evidence: whole chunks, or nuggets."""

    @property
    def note(self) -> str:
        """What a reader of this method's results must know; empty where there is nothing."""
        return ""

    @property
    def one_stage(self) -> bool:
        """Whether nuggets are retrieved from the whole index instead of the best chunks."""
        return False

    @abstractmethod
    def compose(
        self, bench: Workbench, evidence: Retrieval, room: int, clock: StageClock
    ) -> Context:
        """Build the context for one question.

        Args:
            bench: prompt and blocks.
            evidence: chunks, best first, and nuggets of them, best first.
            room: tokens to leave free in the cache for question and answer.
            clock: laps `read` and `compose` are taken here.

        Raises:
            InputError: the context does not fit into the context window.
        """


@dataclass(frozen=True)
class Placed:
    """Pieces of one chunk and their KV as read from the store."""

    pieces: tuple[Piece, ...]
    block: KVBlock


def place_behind_prefix(
    bench: Workbench,
    placed: Sequence[Placed],
    room: int,
    clock: StageClock,
    counts: ReadCounts,
    *,
    align: bool = True,
) -> Context:
    """Join blocks behind the cached prefix, moved to consecutive positions.

    `C_ctx = C_p + Rot(C_1) + ... + Rot(C_n)` (paper arXiv 2608.07458, section 2.4).

    Args:
        bench: prompt and blocks.
        placed: the pieces with their KV, in order.
        room: tokens to leave free for question and answer.
        clock: takes the lap `compose`.
        counts: what reading cost.
        align: move the blocks; otherwise they stay at the positions they were encoded at.

    Raises:
        InputError: the context window ends before tokens or positions do.
    """
    prefix, backbone = bench.blocks.prefix, bench.backbone
    tokens = len(prefix) + sum(len(part.block) for part in placed)
    cache = bench.context(tokens, room)
    with one_thread(tokens <= _SMALL_CONTEXT):
        cache.append(prefix)
        for part in placed:
            cache.append(part.block)
        if align:
            cache.move(len(prefix), torch.arange(len(prefix), tokens), backbone.rope)
        else:  # a short context may lie far behind
            end = int(cache.positions.max()) + 1
            backbone.require_room(end + room, "the unaligned context with question and answer")
    clock.lap("compose")
    pieces = (bench.prefix_piece, *(piece for part in placed for piece in part.pieces))
    return Context(cache, pieces, counts=counts)


def compute_all(
    bench: Workbench, pieces: Sequence[Piece], evidence: Retrieval, room: int, clock: StageClock
) -> Context:
    """A context of which nothing is reused: every token is computed with the question."""
    every = (bench.prefix_piece, *pieces)
    token_ids = bench.token_ids(every, evidence)
    clock.lap("read")
    positions = torch.arange(len(token_ids))
    cache = bench.context(len(token_ids), room)
    cache.reserve(positions)
    clock.lap("compose")
    return Context(cache, every, Live(token_ids, positions))


def read_chunks(
    blocks: ChunkBlocks, evidence: Retrieval, clock: StageClock, counts: ReadCounts
) -> list[Placed]:
    """The retrieved chunks with their whole blocks, in retrieval order; takes the lap `read`."""
    placed = []
    for rank, chunk in enumerate(evidence.chunks):
        block = blocks.rows(chunk.content_hash, None, counts)
        placed.append(Placed((Piece(0, len(block), rank),), block))
    clock.lap("read")
    return placed
