"""`coinkv build`: documents in, index out."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coinkv.cli import options as shared
from coinkv.cli.output import console, counted, milliseconds, print_json, progress, results, size
from coinkv.errors import InputError

if TYPE_CHECKING:
    from coinkv.corpus.extract.base import Extractor
    from coinkv.rag.build import BuildReport


class ExtractorName(StrEnum):
    """Which extractor proposes nuggets."""

    sentences = "sentences"
    windows = "windows"
    llm = "llm"


class EncodeAfterName(StrEnum):
    """What chunks are encoded behind."""

    prefix = "prefix"
    nothing = "nothing"


class CodecName(StrEnum):
    """What KV blocks are written in."""

    raw = "raw"
    int8 = "int8"
    kivi = "kivi"


def build_command(
    docs: Annotated[Path, typer.Argument(help="A folder, a file, or a JSONL file.")],
    index: shared.IndexFolder,
    model: shared.Model = None,
    embedder: Annotated[str | None, typer.Option(help="Embedder by name.")] = None,
    extractor: Annotated[
        ExtractorName, typer.Option(help="What proposes nuggets.")
    ] = ExtractorName.sentences,
    language: Annotated[
        str | None, typer.Option(help="Language of the documents (en, de, zh, ...). Default en.")
    ] = None,
    llm_url: Annotated[
        str | None, typer.Option(help="Base URL of an OpenAI-compatible endpoint (llm extractor).")
    ] = None,
    llm_model: Annotated[str | None, typer.Option(help="Model name at that endpoint.")] = None,
    llm_concurrency: Annotated[int, typer.Option(help="Requests at a time.")] = 8,
    llm_max_tokens: Annotated[
        int | None, typer.Option(help="Most tokens of a reply. Default: room to copy the passage.")
    ] = None,
    llm_timeout: Annotated[float, typer.Option(help="Seconds that one request may take.")] = 600,
    chunk_tokens: Annotated[
        int | None, typer.Option(help="Most tokens of a chunk. Default 512.")
    ] = None,
    encode_after: Annotated[
        EncodeAfterName | None,
        typer.Option(help="Encode chunks behind the system prompt, or alone. Default prefix."),
    ] = None,
    title_header: Annotated[
        bool | None, typer.Option(help="Begin chunks with the document's title. Default yes.")
    ] = None,
    codec: Annotated[
        CodecName | None,
        typer.Option(help="Keep KV exactly (raw), in half (int8) or 0.4 (kivi). Default raw."),
    ] = None,
    mark: Annotated[
        bool | None,
        typer.Option(help="Have the prompt say that documents hold no instructions. Default no."),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep documents of the index that DOCS does not have.")
    ] = False,
    device: shared.Device = None,
    dtype: shared.Dtype = None,
    max_context: shared.MaxContext = None,
    threads: shared.Threads = None,
    json: shared.Json = False,
) -> None:
    """Build an index of documents, or bring it up to date: only new chunks are encoded.

    An interrupted build goes on where it was when the same command is run again.
    """
    shared.use_threads(threads)
    from coinkv.rag.build import BuildOptions, build

    chosen = _extractor(
        extractor, language, llm_url, llm_model, llm_concurrency, llm_max_tokens, llm_timeout
    )
    wanted = BuildOptions(
        model=model,
        embedder=embedder,
        extractor=chosen,
        language=language,
        chunk_tokens=chunk_tokens,
        encode_after=None if encode_after is None else encode_after.value,
        title_header=title_header,
        codec=None if codec is None else codec.value,
        mark=mark,
        keep=keep,
        device=device,
        dtype=dtype,
        max_context=max_context,
    )
    with progress(quiet=json) as step:
        report = build(docs, index, wanted, step)
    if json:
        print_json(report.to_dict())
    else:
        _print(report)


def _extractor(
    name: ExtractorName,
    language: str | None,
    url: str | None,
    model: str | None,
    concurrency: int,
    max_tokens: int | None,
    timeout_seconds: float,
) -> Extractor | None:
    """The extractor of this name; None for sentences, the default of a build."""
    if name is ExtractorName.sentences:
        return None
    if name is ExtractorName.windows:
        from coinkv.corpus.extract.windows import WindowExtractor

        return WindowExtractor()
    if not url or not model:
        raise InputError(
            "the llm extractor needs an endpoint and a model",
            hint="give --llm-url and --llm-model (and the key as OPENAI_API_KEY)",
        )
    from coinkv.config import home
    from coinkv.corpus.extract.llm import LLMExtractor
    from coinkv.corpus.extract.sentences import SentenceExtractor

    return LLMExtractor(
        url,
        model,
        api_key=os.environ.get("OPENAI_API_KEY"),
        concurrency=concurrency,
        max_tokens=max_tokens,
        timeout_seconds=timeout_seconds,
        cache_dir=home() / "extractions",
        fallback=SentenceExtractor(language=language or "en"),
    )


def _print(report: BuildReport) -> None:
    nuggets = report.nuggets
    for name in report.skipped:
        console.print(
            f"skipped (no readable kind of document): {name}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
    results.print(
        f"{counted(report.documents, 'document')}, {counted(report.chunks, 'distinct chunk')} "
        f"({report.encoded} encoded now, {report.reused} kept), {counted(report.tokens, 'token')}",
        soft_wrap=True,
    )
    results.print(
        f"nuggets: {nuggets['exact']:.0f} exact, {nuggets['fuzzy']:.0f} fuzzy, "
        f"{nuggets['abandoned']:.0f} abandoned; they cover {nuggets['coverage']:.0%} of the text",
        soft_wrap=True,
    )
    stages = ", ".join(
        f"{name} {milliseconds(seconds)}" for name, seconds in report.stage_seconds.items()
    )
    results.print(
        f"{size(report.kv_bytes)} of KV, {report.seconds:.1f} s ({stages})", soft_wrap=True
    )
    if report.build_over_prefill is not None:
        results.print(f"encoding took {report.build_over_prefill:.2f} times a plain prefill")
