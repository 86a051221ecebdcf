"""Passages: a training cache, where rows' passages are chunks with nuggets, vectors and KV."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from coinkv.corpus.catalogue import Catalogue
from coinkv.corpus.chunks import Chunk, split
from coinkv.corpus.documents import Document
from coinkv.corpus.schema import Content
from coinkv.corpus.sqlite import REBUILD
from coinkv.errors import IndexNotFoundError, StorageError
from coinkv.evaluate.dataset import EvalRow, Passage
from coinkv.methods.base import Workbench
from coinkv.rag.finish import ChunkFinisher, StageTimes
from coinkv.rag.index import CATALOGUE, chunk_blocks
from coinkv.rag.options import BuildOptions, BuildPlan
from coinkv.rag.workshop import BuildLock


@dataclass(frozen=True)
class LabelledChunk:
    """A finished chunk of a passage; `is_supporting` is the passage's label."""

    content: Content
    is_supporting: bool | None


@dataclass(frozen=True, eq=False)
class Passages:
    """The passages of training rows, made ready for retrieval as an index's documents are.

    A folder keeps what was made: a catalogue of chunks, nuggets and vectors, and a block store that
    fills as blocks are first asked for. So epochs, methods and runs share one encoding. Keys hold
    all that a block depends on: one folder serves any models and prompts. Open with
    `Passages.open`.

    Attributes:
        plan: models, extractor and settings, as of an index that is built.
        catalogue: chunks, nuggets and vectors.
        bench: the prompt, the blocks, and the backbone without any training.
    """

    plan: BuildPlan
    catalogue: Catalogue
    bench: Workbench

    @classmethod
    @contextmanager
    def open(cls, folder: str | Path, options: BuildOptions) -> Iterator[Passages]:
        """Open a cache folder, made if missing, for one model and way of building.

        Raises:
            InputError: an option cannot be used, or there is no such model or embedder.
            StorageError: the folder cannot be written, or what it holds is damaged: here, or inside
                the context.
        """
        folder = Path(folder)
        plan = BuildPlan.of(options, None, folder)
        with ExitStack() as stack, _filled_again(folder):
            with BuildLock(folder):  # several processes may begin at once
                path = folder / CATALOGUE
                opened = Catalogue.open(path) if path.exists() else Catalogue.create(path)
            catalogue = stack.enter_context(opened)
            blocks = chunk_blocks(folder, catalogue, plan.settings, plan.backbone, plan.prompt)
            yield cls(plan, catalogue, Workbench(plan.prompt, blocks, plan.backbone))

    def chunks_of(self, row: EvalRow) -> list[LabelledChunk]:
        """The chunks of a row's passages, in order and none twice, finished and kept when new.

        A chunk supports the answer where any passage that holds it does.
        """
        labels: dict[str, bool | None] = {}
        chunks: dict[str, Chunk] = {}
        for number, passage in enumerate(row.passages):
            for chunk in self._split(passage, number):
                chunks.setdefault(chunk.content_hash, chunk)
                known = labels.get(chunk.content_hash)
                labels[chunk.content_hash] = known or passage.is_supporting
        self._finish(list(chunks.values()))
        contents = self.catalogue.contents(chunks)
        return [LabelledChunk(contents[name], labels[name]) for name in chunks]

    def _split(self, passage: Passage, number: int) -> list[Chunk]:
        settings = self.plan.settings
        return split(
            Document(str(number), passage.title, passage.text),
            self.plan.backbone,
            max_tokens=settings.chunk_tokens,
            title_header=settings.title_header,
            language=settings.language,
        )

    def _finish(self, chunks: Sequence[Chunk]) -> None:
        finisher = ChunkFinisher(self.plan, self.catalogue, self.bench.blocks, StageTimes())
        known = self.catalogue.known(
            [chunk.content_hash for chunk in chunks],
            extractor=finisher.extractor_identity,
            embedder=self.plan.embedder.identity,
        )
        new = [chunk for chunk in chunks if chunk.content_hash not in known]
        found = self.plan.extractor.extract_all([chunk.text for chunk in new])
        for chunk in new:
            self.catalogue.add(finisher.content(chunk, found))


@contextmanager
def _filled_again(folder: Path) -> Iterator[None]:
    """Say of a damaged catalogue what to do about a cache, which is not what an index needs."""
    try:
        yield
    except (StorageError, IndexNotFoundError) as error:
        if error.where != str(folder / CATALOGUE) or error.hint not in (REBUILD, None):
            raise
        raise StorageError(
            error.what,
            where=folder / CATALOGUE,
            hint=f"remove the cache folder {folder}: it is filled again",
        ) from error
