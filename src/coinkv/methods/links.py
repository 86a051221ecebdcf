"""Link tokens: computed live behind each cached chunk, so that chunks hear of each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from coinkv.errors import InputError
from coinkv.methods.base import Context, Live, Piece, Placed, Workbench
from coinkv.methods.blocks import ReadCounts
from coinkv.model.backbone import Backbone
from coinkv.model.clock import StageClock

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

        They stand behind the last of a chunk's pieces, should other chunks' stand between those. A
        link token sees the prefix, all pieces before it and the link tokens between them.

        Raises:
            InputError: the embeddings are missing, do not fit this model or number of chunks.
        """
        last = {part.pieces[0].chunk: at for at, part in enumerate(placed)}
        trained = self._trained(bench.backbone, len(last))
        prefix = bench.blocks.prefix
        links = self.links * len(last)
        tokens = len(prefix) + sum(len(part.block) for part in placed) + links
        cache = bench.context(tokens, room)
        cache.append(prefix)
        pieces, positions = [bench.prefix_piece], [torch.arange(0)]
        for at, part in enumerate(placed):
            cache.append(part.block)
            pieces += part.pieces
            if self.links and at == last[part.pieces[0].chunk]:
                spots = torch.arange(cache.length, cache.length + self.links)
                cache.reserve(spots)
                pieces.append(Piece(0, self.links, linking=True))
                positions.append(spots)
        cache.move(len(prefix), torch.arange(len(prefix), tokens), bench.backbone.rope)
        clock.lap("compose")
        line_break = bench.backbone.tokenize("\n").ids[-1]
        live = Live((line_break,) * links, torch.cat(positions), trained)
        return Context(cache, tuple(pieces), live, counts)

    def _trained(self, backbone: Backbone, chunks: int) -> dict[int, torch.Tensor]:
        """Input vectors `[hidden]` of the link tokens of so many chunks; none when untrained."""
        if self.embeddings is None:
            return {}
        path = Path(self.embeddings).expanduser()
        trained = _read(path, _version(path))
        table = backbone.model.get_input_embeddings().weight
        if trained.ndim != 3 or trained.shape[1:] != (self.links, table.shape[1]):
            raise InputError(
                f"{_TENSOR} is {list(trained.shape)}, not [chunks, {self.links}, {table.shape[1]}]",
                where=path,
                hint="use embeddings trained for this model and this number of links",
            )
        if len(trained) < chunks:
            raise InputError(
                f"the embeddings are for {len(trained)} chunks, the context has {chunks}",
                where=path,
                hint="retrieve fewer chunks",
            )
        return dict(enumerate(trained[:chunks].to(table.device, table.dtype).flatten(0, 1)))


def _version(path: Path) -> tuple[int, ...]:
    """What changes when a file is written anew; nothing for one that cannot be looked at."""
    try:
        status = path.stat()
    except OSError:  # reading it says why
        return ()
    return status.st_ino, status.st_size, status.st_mtime_ns


@lru_cache(maxsize=4)
def _read(path: Path, version: tuple[int, ...]) -> torch.Tensor:
    """The embeddings in a file; kept in memory for as long as its version is the same."""
    try:
        with safe_open(path, framework="pt") as file:
            tensor: torch.Tensor = file.get_tensor(_TENSOR)
    except (OSError, SafetensorError) as error:
        raise InputError(
            f"no link embeddings can be read ({error})",
            where=path,
            hint=f"name a safetensors file that holds {_TENSOR}",
        ) from error
    if not tensor.is_floating_point() or not bool(tensor.isfinite().all()):
        raise InputError(
            f"{_TENSOR} holds what is no finite floating-point number",
            where=path,
            hint="use another copy of it",
        )
    return tensor
