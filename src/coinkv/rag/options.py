"""What a build is asked for, and the plan that makes of it before anything is written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from coinkv.config import CHUNK_TOKENS, DEFAULT_EMBEDDER, DEFAULT_MODEL
from coinkv.corpus.chunks import FEWEST_TOKENS
from coinkv.corpus.extract.base import Extractor
from coinkv.corpus.extract.sentences import SentenceExtractor, require_language
from coinkv.errors import InputError
from coinkv.kv.codec import CodecName, codec_named
from coinkv.methods.blocks import EncodeAfter
from coinkv.model.backbone import Backbone, dtype_name
from coinkv.model.load import load
from coinkv.model.prompt import Prompt, build_prompt
from coinkv.rag.settings import IndexSettings
from coinkv.retrieval.embed import Embedder, load_embedder

DEFAULT_MARK = False
"""Whether new indexes have their evidence marked (measured in docs/decisions.md)."""


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
        codec: what KV blocks are written in: `raw` (the default), `int8` or `kivi`. An index keeps
            the one it was built with.
        mark: have the prompt say that evidence is quoted text and holds no instructions. An index
            keeps it as it was built.
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
    codec: CodecName | None = None
    mark: bool | None = None
    tau: float = 0.7


@dataclass(frozen=True, eq=False)
class BuildPlan:
    """Everything a build works with, loaded and found to go together."""

    settings: IndexSettings
    backbone: Backbone
    prompt: Prompt
    embedder: Embedder
    extractor: Extractor
    tau: float

    @classmethod
    def of(cls, options: BuildOptions, old: IndexSettings | None, folder: Path) -> BuildPlan:
        """Load the models and refuse what cannot work, so that nothing is written in vain.

        Args:
            options: what is asked for.
            old: settings of the index that is in the folder, if one is.
            folder: the index folder.

        Raises:
            InputError: an option cannot be used, or there is no such model or embedder.
            IndexMismatchError: the index belongs to another model or prompt, is written in another
                codec, or has its evidence marked otherwise.
        """
        if not 0 <= options.tau <= 1:
            raise InputError(f"tau is {options.tau}", hint="use 0 to 1 (the paper takes 0.7)")
        if options.codec is not None:
            codec_named(options.codec)
            if old:
                old.require_same_codec(options.codec, str(folder))
        if options.mark is not None and old:
            old.require_same_mark(options.mark, str(folder))
        mark = options.mark if options.mark is not None else old.mark if old else DEFAULT_MARK
        backbone = _backbone(options, old)
        prompt = build_prompt(backbone, mark=mark)
        settings = _settings(options, old, backbone, prompt, mark)
        if old:
            old.require_same_model(backbone, prompt.prefix_hash, str(folder))
        require_language(settings.language)
        if settings.chunk_tokens < FEWEST_TOKENS:
            raise InputError(
                f"chunks of {settings.chunk_tokens} tokens are too small",
                hint=f"take {FEWEST_TOKENS} or more",
            )
        backbone.require_room(
            len(prompt.prefix_ids) + settings.chunk_tokens + len(prompt.suffix_ids("x")),
            f"a chunk of {settings.chunk_tokens} tokens with prompt and question",
        )
        return cls(
            settings,
            backbone,
            prompt,
            load_embedder(settings.embedder),
            options.extractor or SentenceExtractor(language=settings.language),
            options.tau,
        )


def _backbone(options: BuildOptions, old: IndexSettings | None) -> Backbone:
    if isinstance(options.model, Backbone):
        return options.model
    name = options.model or (old.model if old else DEFAULT_MODEL)
    max_context = options.max_context or (old.max_context if old else None)
    dtype = options.dtype or (old.dtype if old else None)
    return load(name, device=options.device, dtype=dtype, max_context=max_context)


def _settings(
    options: BuildOptions,
    old: IndexSettings | None,
    backbone: Backbone,
    prompt: Prompt,
    mark: bool,
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
        model=_from_anywhere(backbone.name),
        fingerprint=backbone.fingerprint,
        prefix_hash=prompt.prefix_hash,
        dtype=dtype_name(backbone.dtype),
        embedder=_from_anywhere(chosen("embedder", DEFAULT_EMBEDDER)),
        chunk_tokens=chosen("chunk_tokens", CHUNK_TOKENS),
        title_header=chosen("title_header", True),
        encode_after=encode_after,
        language=chosen("language", "en"),
        max_context=chosen("max_context", None),
        codec=chosen("codec", "raw"),
        mark=mark,
    )


def _from_anywhere(name: str) -> str:
    """A model's name, its folder in full: the index may be opened from another directory."""
    folder = Path(name).expanduser()
    is_default = name in (DEFAULT_MODEL, DEFAULT_EMBEDDER)
    return str(folder.resolve()) if not is_default and folder.is_dir() else name
