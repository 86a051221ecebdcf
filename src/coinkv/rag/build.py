"""Build: from documents to a finished index, resumable at every chunk."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from coinkv.config import CHUNK_TOKENS, DEFAULT_EMBEDDER, DEFAULT_MODEL
from coinkv.corpus.align import align
from coinkv.corpus.catalogue import Catalogue
from coinkv.corpus.chunks import Chunk, split
from coinkv.corpus.documents import Document, read_documents
from coinkv.corpus.extract.base import Extractor
from coinkv.corpus.extract.sentences import SentenceExtractor
from coinkv.corpus.schema import Content, DocumentRow, Placement
from coinkv.errors import InputError
from coinkv.methods.blocks import ChunkBlocks, EncodeAfter
from coinkv.model.backbone import Backbone
from coinkv.model.fill import plain_prefill
from coinkv.model.load import load
from coinkv.model.prompt import Prompt, build_prompt
from coinkv.rag.index import CATALOGUE, chunk_blocks
from coinkv.rag.publish import publish
from coinkv.rag.settings import IndexSettings
from coinkv.rag.workshop import BuildLock, Finisher
from coinkv.retrieval.embed import Embedder, load_embedder

OnProgress = Callable[[str, int, int], None]
"""Called with a stage's name, what is done and what there is."""

_PREFILL_SAMPLES = 5


@dataclass(frozen=True)
class BuildOptions:
    """How to build. What is left None is taken from the index, or from the defaults when new.

    Attributes:
        model: backbone by name or folder, or one that is loaded.
        embedder: embedder by name.
        extractor: finds nugget candidates; sentences by default.
        language: ISO 639-1 code of the documents, for the ends of sentences.
        chunk_tokens: most tokens of a chunk.
        title_header: chunks begin with their document's title.
        encode_after: encode chunks behind the system prompt (`prefix`) or alone (`nothing`).
        keep: keep documents that the source does not have (by default they are removed).
        device: where to compute.
        dtype: computing dtype.
        max_context: promise a shorter context, for models whose frequencies change beyond one.
        tau: least similarity of a fuzzy match (paper arXiv 2608.07458, section 2.2).
    """

    model: str | Backbone | None = None
    embedder: str | None = None
    extractor: Extractor | None = None
    language: str | None = None
    chunk_tokens: int | None = None
    title_header: bool | None = None
    encode_after: EncodeAfter | None = None
    keep: bool = False
    device: str | torch.device | None = None
    dtype: str | torch.dtype | None = None
    max_context: int | None = None
    tau: float = 0.7


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
        IndexMismatchError: the folder holds an index of another model or format.
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
    with BuildLock(folder, lambda: tell("waiting for another build of this index", 0, 1)):
        run = _Run.begin(folder, options, tell)
        try:
            report = run.finish(documents, keep=options.keep)
        finally:
            run.catalogue.close()
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


@dataclass
class _Run:
    """One build: the opened parts and what was measured so far."""

    folder: Path
    catalogue: Catalogue
    settings: IndexSettings
    backbone: Backbone
    blocks: ChunkBlocks
    embedder: Embedder
    extractor: Extractor
    tau: float
    tell: OnProgress
    stage_seconds: dict[str, float]
    samples: list[float] = field(default_factory=list)

    @classmethod
    def begin(cls, folder: Path, options: BuildOptions, tell: OnProgress) -> _Run:
        path = folder / CATALOGUE
        catalogue = Catalogue.open(path) if path.exists() else Catalogue.create(path)
        started = time.perf_counter()
        tell("loading the models", 0, 1)
        kept = catalogue.state("settings")
        old = IndexSettings.from_json(kept, str(folder)) if kept else None
        backbone = _backbone(options, old)
        prompt = build_prompt(backbone)
        settings = _settings(options, old, backbone, prompt)
        if old:
            old.require_same_model(
                backbone.name, backbone.fingerprint, prompt.prefix_hash, str(folder)
            )
        backbone.require_room(
            len(prompt.prefix_ids) + settings.chunk_tokens + len(prompt.suffix_ids("x")),
            f"a chunk of {settings.chunk_tokens} tokens with prompt and question",
        )
        embedder = load_embedder(settings.embedder)
        catalogue.set_state("settings", settings.to_json())
        blocks = chunk_blocks(folder, catalogue, settings, backbone, prompt)
        blocks.store.sweep()
        extractor = options.extractor or SentenceExtractor(language=settings.language)
        loading = {"load": time.perf_counter() - started}
        return cls(
            folder,
            catalogue,
            settings,
            backbone,
            blocks,
            embedder,
            extractor,
            options.tau,
            tell,
            loading,
        )

    def finish(self, documents: Sequence[Document], *, keep: bool) -> dict[str, Any]:
        """Chunk, encode what is new, publish, and report."""
        if keep:
            ours = {document.key for document in documents}
            documents = [
                *documents,
                *(
                    Document(row.key, row.title, row.text)
                    for row in self.catalogue.documents()
                    if row.key not in ours
                ),
            ]
        chunks = self._chunks(documents)
        distinct = {chunk.content_hash: chunk for chunk in chunks}
        encoded = self._encode_missing(distinct)
        with self._stage("publish"):
            self.tell("publishing", 0, 1)
            publish(
                self.folder,
                self.catalogue,
                self.embedder.identity,
                self.settings,
                self.blocks.store,
                [DocumentRow(d.key, d.title, d.text, d.content_hash) for d in documents],
                [
                    Placement(c.document_key, c.ordinal, c.content_hash, c.start, c.end)
                    for c in chunks
                ],
            )
        totals = self.catalogue.stats()
        return {
            "documents": totals.documents,
            "chunks": totals.chunks,
            "encoded": encoded,
            "reused": len(distinct) - encoded,
            "nuggets": {
                "exact": totals.exact,
                "fuzzy": totals.fuzzy,
                "abandoned": totals.abandoned,
                "coverage": totals.coverage,
            },
            "tokens": totals.tokens,
            "kv_bytes": self.blocks.store.total_bytes(),
            "stage_seconds": self.stage_seconds,
            "build_over_prefill": statistics.median(self.samples) if self.samples else None,
            "extractor_counts": dict(self.extractor.counts),
        }

    def _chunks(self, documents: Sequence[Document]) -> list[Chunk]:
        chunks: list[Chunk] = []
        with self._stage("chunk"):
            for done, document in enumerate(documents):
                self.tell("cutting into chunks", done, len(documents))
                chunks += split(
                    document,
                    self.backbone,
                    max_tokens=self.settings.chunk_tokens,
                    title_header=self.settings.title_header,
                    language=self.settings.language,
                )
        return chunks

    def _encode_missing(self, distinct: dict[str, Chunk]) -> int:
        """Extract, embed, encode and keep every chunk that is not finished; returns how many."""
        known = self.catalogue.known(
            distinct, extractor=self._extractor_identity(), embedder=self.embedder.identity
        )
        stored = set(self.blocks.store.keys())
        work = [
            chunk
            for content_hash, chunk in distinct.items()
            if content_hash not in known or self.blocks.key_of(content_hash) not in stored
        ]
        candidates = self.extractor.extract_all([chunk.text for chunk in work])
        sampled = set(range(1, min(len(work), _PREFILL_SAMPLES + 1))) or {0}
        with Finisher() as finisher:
            for done, chunk in enumerate(work):
                self.tell("encoding chunks", done, len(work))
                with self._stage("extract"):
                    found = next(candidates)
                content = self._content(chunk, found)
                self._encode(chunk, content, finisher, sample=done in sampled)
            self.tell("encoding chunks", len(work), len(work))
        return len(work)

    def _content(self, chunk: Chunk, candidates: Sequence[str]) -> Content:
        with self._stage("align"):
            aligned = align(candidates, chunk, tau=self.tau)
        nuggets = aligned.nuggets
        with self._stage("embed"):
            texts = [chunk.text[nugget.start : nugget.end] for nugget in nuggets]
            titled = f"{chunk.title}\n{chunk.text}" if chunk.title else chunk.text
            vectors = self.embedder.embed([titled, *texts])
        spans = [
            (n.start, n.end, n.token_start, n.token_end, int(n.kind == "fuzzy")) for n in nuggets
        ]
        return Content(
            content_hash=chunk.content_hash,
            title=chunk.title,
            text=chunk.text,
            header_tokens=chunk.header_tokens,
            token_ids=np.asarray(chunk.token_ids, dtype=np.int32),
            nuggets=np.asarray(spans, dtype=np.int32).reshape(-1, 5),
            exact=aligned.exact,
            fuzzy=aligned.fuzzy,
            abandoned=aligned.abandoned,
            covered_tokens=aligned.covered_tokens,
            extractor=self._extractor_identity(),
            embedder=self.embedder.identity,
            chunk_vector=vectors[0],
            nugget_vectors=vectors[1:],
        )

    def _encode(self, chunk: Chunk, content: Content, finisher: Finisher, *, sample: bool) -> None:
        started = time.perf_counter()
        with self._stage("encode"):
            block = self.blocks.encode(chunk.token_ids)
            self.backbone.synchronize()

            def keep() -> None:
                self.blocks.write(chunk.content_hash, block)
                self.catalogue.add(content)

            finisher.submit(keep)
        if not sample:
            return
        encoding = time.perf_counter() - started
        with self._stage("measure"):
            started = time.perf_counter()
            plain_prefill(self.backbone, chunk.token_ids)
            self.backbone.synchronize()
            self.samples.append(encoding / (time.perf_counter() - started))

    def _extractor_identity(self) -> str:
        return f"{self.extractor.identity} tau={self.tau:g}"

    def _stage(self, name: str) -> _StageTimer:
        return _StageTimer(self.stage_seconds, name)


class _StageTimer:
    """Adds the seconds of a `with` block to a stage."""

    def __init__(self, seconds: dict[str, float], name: str) -> None:
        self._seconds, self._name = seconds, name

    def __enter__(self) -> None:
        self._started = time.perf_counter()

    def __exit__(self, *exception: object) -> None:
        spent = time.perf_counter() - self._started
        self._seconds[self._name] = self._seconds.get(self._name, 0.0) + spent


def _backbone(options: BuildOptions, old: IndexSettings | None) -> Backbone:
    if isinstance(options.model, Backbone):
        return options.model
    name = options.model or (old.model if old else DEFAULT_MODEL)
    max_context = options.max_context or (old.max_context if old else None)
    return load(name, device=options.device, dtype=options.dtype, max_context=max_context)


def _settings(
    options: BuildOptions, old: IndexSettings | None, backbone: Backbone, prompt: Prompt
) -> IndexSettings:
    """The options given, else those of the index, else the defaults."""

    def chosen(name: str, default: Any) -> Any:
        given = getattr(options, name)
        kept = getattr(old, name) if old else None
        return given if given is not None else kept if kept is not None else default

    encode_after = chosen("encode_after", "prefix")
    if encode_after not in ("prefix", "nothing"):
        raise InputError(f"encode_after is {encode_after!r}", hint="use 'prefix' or 'nothing'")
    return IndexSettings(
        model=backbone.name,
        fingerprint=backbone.fingerprint,
        prefix_hash=prompt.prefix_hash,
        embedder=chosen("embedder", DEFAULT_EMBEDDER),
        chunk_tokens=chosen("chunk_tokens", CHUNK_TOKENS),
        title_header=chosen("title_header", True),
        encode_after=encode_after,
        language=chosen("language", "en"),
        max_context=chosen("max_context", None),
    )
