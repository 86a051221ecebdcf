"""Build: from documents to a finished index, resumable at every chunk."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coinkv.corpus.catalogue import Catalogue
from coinkv.corpus.chunks import Chunk, split
from coinkv.corpus.documents import Document, read_documents
from coinkv.corpus.schema import DocumentRow, Placement
from coinkv.errors import DocumentError, InputError
from coinkv.rag.finish import ChunkFinisher, OnProgress, StageTimes
from coinkv.rag.index import CATALOGUE, chunk_blocks
from coinkv.rag.options import BuildOptions, BuildPlan
from coinkv.rag.publish import publish
from coinkv.rag.settings import IndexSettings, published_settings
from coinkv.rag.workshop import BuildLock, leave_one_codec

__all__ = ["BuildOptions", "BuildReport", "OnProgress", "build"]


@dataclass(frozen=True)
class BuildReport:
    """What a build did and what the index holds now.

    Attributes:
        documents: documents in the index.
        chunks: distinct chunks in the index.
        encoded: chunks encoded in this run.
        reused: chunks that were finished before.
        nuggets: how many were matched `exact`, `fuzzy`, how many candidates `abandoned`, and
            `coverage`: the share of the chunks' text tokens that lie in a nugget.
        tokens: tokens of all chunks, title headers included.
        kv_bytes: bytes of all KV blocks on disk.
        seconds: wall clock of this run, model loading included.
        stage_seconds: wall clock by stage.
        build_over_prefill: encoding a chunk and handing it to the store, over a plain prefill of
            the same tokens: median of up to five chunks of this run; None if none was encoded.
        skipped: files that are of no readable kind.
        extractor_counts: what the extractor counted (malformed replies and so on).
    """

    documents: int
    chunks: int
    encoded: int
    reused: int
    nuggets: dict[str, float]
    tokens: int
    kv_bytes: int
    seconds: float
    stage_seconds: dict[str, float]
    build_over_prefill: float | None
    skipped: tuple[str, ...] = ()
    extractor_counts: dict[str, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready facts."""
        facts = {key: value for key, value in vars(self).items() if key != "build_over_prefill"}
        facts["skipped"] = list(self.skipped)
        facts["ratios"] = {"build_over_prefill": self.build_over_prefill}
        return facts


def build(
    source: str | Path,
    folder: str | Path,
    options: BuildOptions | None = None,
    on_progress: OnProgress | None = None,
) -> BuildReport:
    """Make an index of documents, or bring it up to date: only new chunks are encoded.

    Every finished chunk is kept at once, so an interrupted build goes on where it was. Readers see
    the old index until the new one is whole.

    Args:
        source: a folder, a file or a JSONL file (see `coinkv.corpus.documents.read_documents`).
        folder: the index folder, made if missing.
        options: how to build.
        on_progress: told of every step.

    Raises:
        InputError: source, options or folder cannot be used; nothing was changed.
        IndexMismatchError: the folder holds an index of another model, codec or format.
        StorageError: the disk is full or refuses; the old index is intact.
    """
    started = time.perf_counter()
    options = options or BuildOptions()
    tell = on_progress or (lambda stage, done, total: None)
    folder = Path(folder)
    _require_index_folder(folder)
    skipped: list[str] = []
    tell("reading documents", 0, 1)
    documents = read_documents(Path(source), skipped=skipped)
    _require_unicode_keys(documents)
    times = StageTimes()
    with times.stage("load"):
        tell("loading the models", 0, 1)
        before = _settings_in(folder)
        plan = BuildPlan.of(options, before, folder)
    with BuildLock(folder, lambda: tell("waiting for another build of this index", 0, 1)):
        old = _settings_in(folder)
        if old != before:  # another build has published meanwhile
            plan = BuildPlan.of(options, old, folder)
        path = folder / CATALOGUE
        with Catalogue.open(path) if path.exists() else Catalogue.create(path) as catalogue:
            report = _Run(folder, catalogue, plan, times).finish(documents, options.keep, tell)
    seconds = time.perf_counter() - started
    return BuildReport(seconds=seconds, skipped=tuple(skipped), **report)


def _require_index_folder(folder: Path) -> None:
    """Refuse to build into a file or into a folder that holds something else."""
    if folder.exists() and not folder.is_dir():
        raise InputError("this is a file", where=folder, hint="name a folder for the index")
    if folder.is_dir():
        others = {entry.name for entry in folder.iterdir()} - {"build.lock"}
        if others and CATALOGUE not in others:
            raise InputError(
                "this folder holds other files, not an index",
                where=folder,
                hint="name a new or empty folder for the index",
            )


def _require_unicode_keys(documents: Sequence[Document]) -> None:
    """Refuse file names that are no text: the catalogue could not keep them."""
    for document in documents:
        try:
            document.key.encode()
        except UnicodeEncodeError as error:
            raise DocumentError(
                "its name is no valid Unicode", where=ascii(document.key), hint="rename this file"
            ) from error


def _settings_in(folder: Path) -> IndexSettings | None:
    """Settings of the published index in a folder, None where there is none yet."""
    if not (folder / CATALOGUE).exists():
        return None
    with Catalogue.open(folder / CATALOGUE) as catalogue:
        return published_settings(catalogue, catalogue.generation, str(folder))


@dataclass(frozen=True)
class _Run:
    """One build under the lock."""

    folder: Path
    catalogue: Catalogue
    plan: BuildPlan
    times: StageTimes

    def finish(self, documents: Sequence[Document], keep: bool, tell: OnProgress) -> dict[str, Any]:
        """Chunk, finish what is new, publish, and report."""
        settings, plan = self.plan.settings, self.plan
        blocks = chunk_blocks(self.folder, self.catalogue, settings, plan.backbone, plan.prompt)
        blocks.store.sweep()
        leave_one_codec(self.catalogue, blocks.store, settings.codec)
        if keep:
            documents = [*documents, *self._others(documents)]
        chunks = self._chunks(documents, tell)
        distinct = {chunk.content_hash: chunk for chunk in chunks}
        finisher = ChunkFinisher(plan, self.catalogue, blocks, self.times)
        encoded = finisher.finish(distinct, tell)
        with self.times.stage("publish"):
            tell("publishing", 0, 1)
            publish(
                self.folder,
                self.catalogue,
                plan.embedder.identity,
                settings,
                blocks.store,
                [DocumentRow(d.key, d.title, d.text, d.content_hash) for d in documents],
                [
                    Placement(c.document_key, c.ordinal, c.content_hash, c.start, c.end)
                    for c in chunks
                ],
            )
        return {
            **self._totals(),
            "encoded": encoded,
            "reused": len(distinct) - encoded,
            "kv_bytes": blocks.store.total_bytes(),
            "stage_seconds": self.times.seconds,
            "build_over_prefill": (
                statistics.median(finisher.samples) if finisher.samples else None
            ),
            "extractor_counts": dict(plan.extractor.counts),
        }

    def _others(self, documents: Sequence[Document]) -> list[Document]:
        """Documents of the index that the source does not have."""
        ours = {document.key for document in documents}
        return [
            Document(row.key, row.title, row.text)
            for row in self.catalogue.documents()
            if row.key not in ours
        ]

    def _chunks(self, documents: Sequence[Document], tell: OnProgress) -> list[Chunk]:
        settings = self.plan.settings
        chunks: list[Chunk] = []
        with self.times.stage("chunk"):
            for done, document in enumerate(documents):
                tell("cutting into chunks", done, len(documents))
                chunks += split(
                    document,
                    self.plan.backbone,
                    max_tokens=settings.chunk_tokens,
                    title_header=settings.title_header,
                    language=settings.language,
                )
        return chunks

    def _totals(self) -> dict[str, Any]:
        totals = self.catalogue.stats()
        return {
            "documents": totals.documents,
            "chunks": totals.chunks,
            "nuggets": {
                "exact": totals.exact,
                "fuzzy": totals.fuzzy,
                "abandoned": totals.abandoned,
                "coverage": totals.coverage,
            },
            "tokens": totals.tokens,
        }
