"""What a method is: one function from retrieved evidence to a context."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch

from coinkv.kv.block import KVBlock
from coinkv.methods.blocks import ChunkBlocks, ReadCounts
from coinkv.methods.clock import StageClock
from coinkv.model.fill import LiveCache
from coinkv.model.prompt import Prompt
from coinkv.model.threads import one_thread
from coinkv.retrieval.two_stage import Retrieval

_SMALL_CONTEXT = 1024
"""Up to so many tokens, placing blocks is a matter of a few milliseconds on one CPU thread."""


@dataclass
class Context:
    """`C_ctx`: what stands before the question.

    Attributes:
        cache: KV that is ready, at positions 0 on, with room left for question and answer.
        pending: tokens behind it that are to be computed live together with the question; empty
            when all KV is reused.
        counts: what reading stored blocks cost.
    """

    cache: LiveCache
    pending: tuple[int, ...] = ()
    counts: ReadCounts = field(default_factory=ReadCounts)

    @property
    def len_tokens(self) -> int:
        """Len: tokens before the question, whether reused or computed."""
        return self.cache.length + len(self.pending)


@dataclass(frozen=True)
class Workbench:
    """What every method works with: the prompt around the evidence, and the chunks' blocks."""

    prompt: Prompt
    blocks: ChunkBlocks

    def context(self, tokens: int, room: int) -> LiveCache:
        """An empty cache for `tokens` of context and `room` more for question and answer.

        Raises:
            InputError: they do not fit into the context window.
        """
        backbone = self.blocks.backbone
        backbone.require_room(tokens + room, "the retrieved context with question and answer")
        return LiveCache.for_backbone(backbone, tokens + room)


class Method(ABC):
    """One way from retrieved evidence to `C_ctx`.

    A method is one file with one function to write, `compose`. Its options are dataclass fields.
    """

    name: ClassVar[str]
    unit: ClassVar[Literal["chunk", "nugget"]]
    """What it takes as evidence: whole chunks, or nuggets."""

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


def place_behind_prefix(
    bench: Workbench, blocks: list[KVBlock], room: int, clock: StageClock, counts: ReadCounts
) -> Context:
    """Join blocks behind the cached prefix, moved to consecutive positions.

    `C_ctx = C_p + Rot(C_1) + ... + Rot(C_n)` (paper arXiv 2608.07458, section 2.4).
    """
    prefix, backbone = bench.blocks.prefix, bench.blocks.backbone
    tokens = len(prefix) + sum(map(len, blocks))
    cache = bench.context(tokens, room)
    with one_thread(tokens <= _SMALL_CONTEXT):
        cache.append(prefix)
        for block in blocks:
            cache.append(block)
        cache.move(len(prefix), torch.arange(len(prefix), tokens), backbone.rope)
    clock.lap("compose")
    return Context(cache, counts=counts)
