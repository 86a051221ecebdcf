"""Settings of an index: the facts its KV, vectors and chunks depend on, kept with it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from coinkv.config import CHUNK_TOKENS
from coinkv.corpus.catalogue import Catalogue
from coinkv.errors import IndexMismatchError
from coinkv.kv.codec import CodecName
from coinkv.methods.blocks import EncodeAfter
from coinkv.model.backbone import Backbone, dtype_name
from coinkv.store.base import block_key

FORMAT_VERSION = 1
"""Version of the index folder; another version is refused, not guessed at."""


@dataclass(frozen=True)
class IndexSettings:
    """How an index was built.

    Attributes:
        model: name or path of the backbone.
        fingerprint: the backbone's fingerprint.
        prefix_hash: digest of the system prompt's tokens.
        dtype: what the backbone computed in ("float32"); opening computes in it again.
        embedder: name of the embedder.
        chunk_tokens: most tokens of a chunk.
        title_header: chunks begin with their document's title.
        encode_after: chunks are encoded behind the `prefix` or behind `nothing`.
        language: ISO 639-1 code of the documents, for the ends of sentences.
        max_context: the context length promised when the model was loaded, if any.
        codec: what KV blocks are written in; `raw` for indexes that do not say.
        mark: the prompt marks evidence as quoted text; not so for indexes that do not say.
        format_version: version of the index folder.
    """

    model: str
    fingerprint: str
    prefix_hash: str
    dtype: str
    embedder: str
    chunk_tokens: int = CHUNK_TOKENS
    title_header: bool = True
    encode_after: EncodeAfter = "prefix"
    language: str = "en"
    max_context: int | None = None
    codec: CodecName = "raw"
    mark: bool = False
    format_version: int = FORMAT_VERSION

    def block_key(self, content_hash: str) -> str:
        """The store key of a chunk's block: model, chunk and what the chunk was encoded behind."""
        behind = self.prefix_hash if self.encode_after == "prefix" else None
        return block_key(self.fingerprint, content_hash, behind)

    def to_json(self) -> str:
        """The settings as kept in the catalogue."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str, where: str) -> IndexSettings:
        """Settings read back.

        Raises:
            IndexMismatchError: they were written by another format version.
        """
        try:
            facts = json.loads(text)
            version = facts["format_version"]
            if version == FORMAT_VERSION:
                return cls(**facts)
        except (ValueError, KeyError, TypeError):
            version = "unreadable"
        raise IndexMismatchError(
            f"the index has format version {version}, this coinkv reads {FORMAT_VERSION}",
            where=where,
            hint="build it again into a new folder",
        )

    def require_same_model(self, backbone: Backbone, prefix_hash: str, where: str) -> None:
        """Refuse to mix KV of two models or prompts in one index.

        Raises:
            IndexMismatchError: the index holds KV of another model, dtype, tokenizer or prompt.
        """
        if self.fingerprint != backbone.fingerprint:
            raise IndexMismatchError(
                f"the index was built with {self.model} in {self.dtype} (fingerprint "
                f"{self.fingerprint[:12]}), not with {backbone.name} in "
                f"{dtype_name(backbone.dtype)} ({backbone.fingerprint[:12]})",
                where=where,
                hint="use that model and dtype, or build into another folder",
            )
        if self.prefix_hash != prefix_hash:
            raise IndexMismatchError(
                "the index was built with another system prompt",
                where=where,
                hint="build it again into a new folder",
            )

    def require_same_codec(self, codec: CodecName, where: str) -> None:
        """Refuse to mix blocks of two codecs in one index: its bytes and exactness are one fact.

        Raises:
            IndexMismatchError: the index's blocks are written in another codec.
        """
        if self.codec != codec:
            raise IndexMismatchError(
                f"the index keeps its KV in the codec {self.codec}, not {codec}",
                where=where,
                hint="build it again into a new folder",
            )

    def require_same_mark(self, mark: bool, where: str) -> None:
        """Refuse to change the prompt that the index's KV was encoded behind.

        Raises:
            IndexMismatchError: the index marks evidence and should not, or the other way round.
        """
        if self.mark != mark:
            raise IndexMismatchError(
                f"the index was built with evidence {'marked' if self.mark else 'unmarked'}",
                where=where,
                hint="build it again into a new folder",
            )


def published_settings(catalogue: Catalogue, generation: int, where: str) -> IndexSettings | None:
    """Settings of a published generation; None when none is published (generation 0).

    Raises:
        IndexMismatchError: they were written by another format version.
    """
    kept = catalogue.state(_state_name(generation))
    return IndexSettings.from_json(kept or "", where) if generation else None


def keep_settings(catalogue: Catalogue, generation: int, settings: IndexSettings) -> None:
    """Keep the settings of a generation, before it is published.

    Each generation has its own: a build that is cut off leaves those of the published one alone.
    """
    catalogue.set_state(_state_name(generation), settings.to_json())


def _state_name(generation: int) -> str:
    return f"settings of generation {generation}"
