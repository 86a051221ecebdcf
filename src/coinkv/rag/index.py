"""An index: one folder with a catalogue, vectors and KV blocks, opened for one backbone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from coinkv.corpus.catalogue import Catalogue
from coinkv.errors import IndexNotFoundError
from coinkv.kv.block import KVBlock
from coinkv.methods.base import Workbench
from coinkv.methods.blocks import ChunkBlocks, ChunkTokens
from coinkv.model.backbone import Backbone
from coinkv.model.fill import LiveCache, fill
from coinkv.model.load import load
from coinkv.model.prompt import Prompt, build_prompt
from coinkv.rag.settings import IndexSettings, published_settings
from coinkv.retrieval.embed import Embedder, load_embedder
from coinkv.retrieval.index import VectorIndex
from coinkv.store.disk import DiskStore

if TYPE_CHECKING:
    from coinkv.rag.build import BuildOptions, OnProgress

CATALOGUE = "catalogue.sqlite"
BLOCKS = "blocks"
VECTORS = "vectors"


@dataclass(frozen=True, eq=False)
class Index:
    """An opened index. Safe to share between threads.

    Attributes:
        folder: where it lies.
        settings: how it was built.
        catalogue: documents, chunks and nuggets.
        vectors: the vectors of the published generation.
        embedder: turns questions into vectors.
        bench: the backbone's prompt and the chunks' blocks.
    """

    folder: Path
    settings: IndexSettings
    catalogue: Catalogue
    vectors: VectorIndex
    embedder: Embedder
    bench: Workbench

    @property
    def backbone(self) -> Backbone:
        """The model the index's KV belongs to."""
        return self.bench.backbone

    @classmethod
    def open(
        cls,
        folder: str | Path,
        *,
        model: str | Backbone | None = None,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        embedder_named: Callable[[str], Embedder] | None = None,
    ) -> Index:
        """Open a finished index.

        Args:
            folder: the index folder.
            model: backbone, or its name; by default the one the index was built with.
            device: where to compute, by default the best there is.
            dtype: computing dtype, by default the one the index was built in; no other will do.
            embedder_named: gives the index's embedder by its name; by default it is loaded.

        Raises:
            IndexNotFoundError: there is no finished index in the folder.
            IndexMismatchError: it belongs to another model, prompt, embedder or format version.
        """
        folder = Path(folder)
        catalogue, settings, generation = open_published(folder)
        with ExitStack() as on_error:
            on_error.callback(catalogue.close)
            # mapped before the models take their time, so that no build removes it meanwhile
            vectors = VectorIndex.open(vectors_folder(folder, generation))
            if isinstance(model, Backbone):
                backbone = model
            else:
                backbone = load(
                    model or settings.model,
                    device=device,
                    dtype=dtype or settings.dtype,
                    max_context=settings.max_context,
                )
            prompt = build_prompt(backbone, mark=settings.mark)
            settings.require_same_model(backbone, prompt.prefix_hash, str(folder))
            embedder = (embedder_named or load_embedder)(settings.embedder)
            vectors.require_embedder(embedder.identity)
            blocks = chunk_blocks(folder, catalogue, settings, backbone, prompt)
            on_error.pop_all()
        bench = Workbench(prompt, blocks, backbone)
        return cls(folder, settings, catalogue, vectors, embedder, bench)

    @classmethod
    def build(
        cls,
        documents: str | Path,
        folder: str | Path,
        options: BuildOptions | None = None,
        on_progress: OnProgress | None = None,
    ) -> Index:
        """Build an index, or bring it up to date, and open it.

        The arguments are those of `coinkv.rag.build.build`, which returns the report instead.
        """
        from coinkv.rag.build import BuildOptions, build

        options = options or BuildOptions()
        build(documents, folder, options, on_progress)
        return cls.open(folder, model=options.model, device=options.device, dtype=options.dtype)


def open_published(folder: Path) -> tuple[Catalogue, IndexSettings, int]:
    """Catalogue of a finished index, and settings and number of its published generation.

    Raises:
        IndexNotFoundError: no index, or one whose first build did not finish.
        IndexMismatchError: another format version.
    """
    if not (folder / CATALOGUE).is_file():
        raise IndexNotFoundError(
            "no index in this folder",
            where=folder,
            hint="make one with: coinkv build DOCS --index DIR",
        )
    catalogue = Catalogue.open(folder / CATALOGUE)
    with ExitStack() as on_error:
        on_error.callback(catalogue.close)
        generation = catalogue.generation
        settings = published_settings(catalogue, generation, str(folder))
        if settings is None:
            raise IndexNotFoundError(
                "the build of this index did not finish",
                where=folder,
                hint="run the same build again",
            )
        on_error.pop_all()
    return catalogue, settings, generation


def vectors_folder(folder: Path, generation: int) -> Path:
    """Where the vectors of a generation lie."""
    return folder / VECTORS / str(generation)


def chunk_blocks(
    folder: Path,
    catalogue: Catalogue,
    settings: IndexSettings,
    backbone: Backbone,
    prompt: Prompt,
) -> ChunkBlocks:
    """The index's blocks for a backbone; encodes the system prompt once."""

    def tokens_of(content_hash: str) -> ChunkTokens:
        content = catalogue.content(content_hash)
        return ChunkTokens(content.token_ids.tolist(), content.header_tokens)

    return ChunkBlocks(
        backbone=backbone,
        prefix=encoded_prefix(backbone, prompt),
        prefix_hash=prompt.prefix_hash,
        store=DiskStore(folder / BLOCKS, codec=settings.codec),
        encode_after=settings.encode_after,
        tokens_of=tokens_of,
    )


def encoded_prefix(backbone: Backbone, prompt: Prompt) -> KVBlock:
    """`C_p`: KV of the system prompt at positions 0 on."""
    cache = LiveCache.for_backbone(backbone, len(prompt.prefix_ids))
    live = torch.arange(len(prompt.prefix_ids))
    fill(backbone, cache, prompt.prefix_ids, live, logits="none")
    return cache.block()
