"""Finish chunks: find their nuggets, embed and encode them, and keep each at once."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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
    """Wall clock by stage of a build."""

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
        catalogue: takes the finished contents.
        blocks: encodes, and takes the KV.
        times: stages are timed here.
        samples: seconds of encoding a chunk over those of its plain prefill.
    """

    plan: BuildPlan
    catalogue: Catalogue
    blocks: ChunkBlocks
    times: StageTimes
    samples: list[float] = field(default_factory=list)

    def finish(self, distinct: Mapping[str, Chunk], tell: OnProgress) -> int:
        """Do what is missing for each chunk, by content hash; returns how many were encoded.

        A chunk's KV is kept before its content, so that a known content has KV. Either is made
        only when it is missing: new nuggets cost no encoding, a lost block no extraction.
        """
        known = self.catalogue.known(
            distinct, extractor=self._extractor_identity, embedder=self.plan.embedder.identity
        )
        stored = set(self.blocks.store.keys())
        unknown = [chunk for content_hash, chunk in distinct.items() if content_hash not in known]
        to_encode = [h for h in distinct if self.blocks.key_of(h) not in stored]
        sampled = set(to_encode[1 : _PREFILL_SAMPLES + 1] or to_encode[:1])
        work = [h for h in distinct if h not in known or h in set(to_encode)]
        candidates = self.plan.extractor.extract_all([chunk.text for chunk in unknown])
        missing = set(to_encode)
        try:
            with Finisher() as finisher:
                for done, content_hash in enumerate(work):
                    tell("encoding chunks", done, len(work))
                    chunk, content = distinct[content_hash], None
                    if content_hash not in known:
                        with self.times.stage("extract"):
                            found = next(candidates)
                        content = self._content(chunk, found)
                    block = None
                    ...
        finally:
            ...
        return len(to_encode)
