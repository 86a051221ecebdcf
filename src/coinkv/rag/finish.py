"""Finish chunks: find their nuggets, embed and encode them, and keep each at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from coinkv.corpus.align import align
from coinkv.corpus.catalogue import Catalogue
from coinkv.corpus.chunks import Chunk
from coinkv.corpus.schema import Content
from coinkv.kv.block import KVBlock
from coinkv.methods.blocks import ChunkBlocks
from coinkv.model.fill import plain_prefill
from coinkv.rag.options import BuildPlan
from coinkv.rag.workshop import Finisher

OnProgress = Callable[[str, int, int], None]
"""Called with a stage's name, what is done and what there is."""

_PREFILL_SAMPLES = 5


@dataclass
class StageTimes:
    """Wall clock of a build by stage."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the seconds of a `with` block to a stage."""
        started = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - started
            self.seconds[name] = self.seconds.get(name, 0.0) + spent


@dataclass
class ChunkFinisher:
    """Finishes the chunks of one build: those that lack nuggets, vectors or KV.

    Attributes:
        plan: models, extractor and settings.
        catalogue: takes nuggets and vectors.
        blocks: encodes, and takes the KV.
        times: stages are timed here.
        samples: of some chunks, the time to encode and hand over by that of their plain prefill.
    """

    plan: BuildPlan
    catalogue: Catalogue
    blocks: ChunkBlocks
    times: StageTimes
    samples: list[float] = field(default_factory=list)

    def finish(self, distinct: Mapping[str, Chunk], tell: OnProgress) -> int:
        """Make what is missing of the chunks, given by content hash; returns how many were encoded.

        New nuggets cost no encoding, and a lost KV block costs no extraction.
        """
        known = self.catalogue.known(
            distinct, extractor=self.extractor_identity, embedder=self.plan.embedder.identity
        )
        stored = set(self.blocks.store.keys())
        to_encode = dict.fromkeys(h for h in distinct if self.blocks.key_of(h) not in stored)
        sampled = list(to_encode)[1 : _PREFILL_SAMPLES + 1] or list(to_encode)
        work = [h for h in distinct if h in to_encode or h not in known]
        texts = [distinct[h].text for h in work if h not in known]
        with _closed(self.plan.extractor.extract_all(texts)) as candidates, Finisher() as finisher:
            for done, content_hash in enumerate(work):
                tell("encoding chunks", done, len(work))
                chunk = distinct[content_hash]
                content = None if content_hash in known else self.content(chunk, candidates)
                if content_hash in to_encode:
                    self._encode(chunk, content, finisher, sample=content_hash in sampled)
                elif content is not None:
                    self._hand_over(chunk, None, content, finisher)
            tell("encoding chunks", len(work), len(work))
        return len(to_encode)

    def content(self, chunk: Chunk, candidates: Iterator[Sequence[str]]) -> Content:
        """Nuggets and vectors of a chunk, whose candidates come next from the iterator."""
        with self.times.stage("extract"):
            found = next(candidates)
        with self.times.stage("align"):
            aligned = align(found, chunk, tau=self.plan.tau)
        nuggets = aligned.nuggets
        with self.times.stage("embed"):
            texts = [chunk.text[nugget.start : nugget.end] for nugget in nuggets]
            titled = f"{chunk.title}\n{chunk.text}" if chunk.title else chunk.text
            vectors = self.plan.embedder.embed([titled, *texts])
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
            extractor=self.extractor_identity,
            embedder=self.plan.embedder.identity,
            chunk_vector=vectors[0],
            nugget_vectors=vectors[1:],
        )

    def _encode(
        self, chunk: Chunk, content: Content | None, finisher: Finisher, *, sample: bool
    ) -> None:
        started = time.perf_counter()
        with self.times.stage("encode"):
            block = self.blocks.encode(chunk.token_ids)
            self.plan.backbone.synchronize()
            self._hand_over(chunk, block, content, finisher)
        if not sample:
            return
        encoding = time.perf_counter() - started
        with self.times.stage("measure"):
            started = time.perf_counter()
            plain_prefill(self.plan.backbone, chunk.token_ids)
            self.plan.backbone.synchronize()
            self.samples.append(encoding / (time.perf_counter() - started))

    def _hand_over(
        self, chunk: Chunk, block: KVBlock | None, content: Content | None, finisher: Finisher
    ) -> None:
        def keep() -> None:
            if block is not None:
                self.blocks.write(chunk.content_hash, block)
            if content is not None:
                self.catalogue.add(content)

        finisher.submit(keep)

    @property
    def extractor_identity(self) -> str:
        """What nuggets are found by: the extractor with its options, and tau."""
        return f"{self.plan.extractor.identity} tau={self.plan.tau:g}"


@contextmanager
def _closed(candidates: Iterator[list[str]]) -> Iterator[Iterator[list[str]]]:
    """Close a generator at the end, whatever happens: it may have requests under way."""
    try:
        yield candidates
    finally:
        if isinstance(candidates, Generator):
            candidates.close()
