"""Link tokens: computed live behind each cached chunk, so that chunks hear of each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from coinkv.errors import InputError
from coinkv.methods.base import Context, Live, Piece, Placed, Workbench
from coinkv.methods.blocks import ReadCounts
from coinkv.methods.clock import StageClock
from coinkv.model.backbone import Backbone

_TENSOR = "link_embeddings"


@dataclass(frozen=True)
class Linking:
    """Options of link tokens, for the methods that have them.

    Args:
        links: link tokens behind each chunk (KVLink trains 5).
        embeddings: safetensors file with `link_embeddings` `[chunks, links, hidden]`, distinct for
            the chunk's place in the context, as training leaves it. None is the untrained form:
            every link token then looks like a line break to the model.
    """

    links: int = 5
    embeddings: str | None = None

    def __post_init__(self) -> None:
        if self.links < 0:
            raise InputError(f"links is {self.links}", hint="use 0 or more")

    @property
    def note(self) -> str:
        """What a reader of results must know."""
        return "" if self.embeddings else "untrained link tokens"

    def linked(
        self,
        bench: Workbench,
        placed: Sequence[Placed],
        room: int,
        clock: StageClock,
        counts: ReadCounts,
    ) -> Context:
        """Join blocks behind the prefix with link tokens, still to be computed, after each chunk.

        A link token sees the prefix, all chunks before it and the link tokens between them.

        Raises:
            InputError: the embeddings are missing, do not fit this model or number of chunks.
        """
        chunks = [list(parts) for _, parts in groupby(placed, lambda part: part.pieces[0].chunk)]
        vectors = self._vectors(bench.backbone, len(chunks))
        prefix = bench.blocks.prefix
        evidence = sum(len(part.block) for part in placed)
        tokens = len(prefix) + evidence + self.links * len(chunks)
        cache = bench.context(tokens, room)
        cache.append(prefix)
        pieces, positions = [bench.prefix_piece], [torch.arange(0)]
        for parts in chunks:
            for part in parts:
                cache.append(part.block)
                pieces += part.pieces
            spots = torch.arange(cache.length, cache.length + self.links)
            cache.reserve(spots)
            pieces.append(Piece(0, self.links, linking=True))
            positions.append(spots)
        cache.move(len(prefix), torch.arange(len(prefix), tokens), bench.backbone.rope)
        clock.lap("compose")
        live = Live(
            (0,) * (self.links * len(chunks)),
            torch.cat(positions),
            dict(enumerate(vectors.flatten(0, 1))),
        )
        return Context(cache, tuple(pieces), live, counts)

    def _vectors(self, backbone: Backbone, chunks: int) -> torch.Tensor:
        """`[chunks, links, hidden]` in the model's dtype, on its device."""
        table = backbone.model.get_input_embeddings().weight.detach()
        if self.embeddings is None:
            neutral = table[backbone.tokenize("\n").ids[0]]
            vectors: torch.Tensor = neutral.expand(chunks, self.links, -1)
            return vectors
        trained = _read(self.embeddings)
        if trained.ndim != 3 or trained.shape[1:] != (self.links, table.shape[1]):
            raise InputError(
                f"{_TENSOR} is {list(trained.shape)}, not [chunks, {self.links}, {table.shape[1]}]",
                where=self.embeddings,
                hint="use embeddings trained for this model and this number of links",
            )
        if len(trained) < chunks:
            raise InputError(
                f"the embeddings are for {len(trained)} chunks, the context has {chunks}",
                where=self.embeddings,
                hint="retrieve fewer chunks",
            )
        return trained[:chunks].to(table.device, table.dtype)


@lru_cache(maxsize=4)
def _read(path: str) -> torch.Tensor:
    try:
        with safe_open(path, framework="pt") as file:
            tensor: torch.Tensor = file.get_tensor(_TENSOR)
            return tensor
    except (OSError, SafetensorError) as error:
        raise InputError(
            f"no link embeddings can be read ({error})",
            where=Path(path),
            hint=f"name a safetensors file that holds {_TENSOR}",
        ) from error
