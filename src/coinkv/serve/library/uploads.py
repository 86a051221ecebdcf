"""Uploads: files of a client become documents with keys, and reasons for those that could not."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import IO

from coinkv.errors import InputError
from coinkv.serve.library.assignment import Skipped
from coinkv.serve.library.names import document_key, unique_key
from coinkv.serve.library.parsing import ParsedDocument, ParseLimits, parse_file
from coinkv.serve.settings import ServeSettings

_AT_A_TIME = 2
_SHOWN_REASONS = 3


@dataclass(frozen=True)
class UploadedFile:
    """A file as a client sent it.

    Attributes:
        name: as the client calls it; no path on this machine.
        content: its bytes, in a real file.
    """

    name: str
    content: IO[bytes]


@dataclass(frozen=True)
class ReadUpload:
    """What an upload holds.

    Attributes:
        rows: documents as `{"id", "title", "text"}`, no id twice; at least one.
        skipped: files of which nothing was taken.
    """

    rows: tuple[Mapping[str, str], ...]
    skipped: tuple[Skipped, ...]


class UploadReader:
    """Reads uploads, two files at a time over all clients.

    Args:
        settings: limits of an upload and of reading a file.
    """

    def __init__(self, settings: ServeSettings) -> None:
        self._limits = ParseLimits(
            seconds=settings.parse_seconds,
            memory_bytes=settings.parse_memory_bytes,
            file_bytes=settings.max_upload_bytes,
            text_bytes=settings.max_upload_bytes,
        )
        self._turns = threading.BoundedSemaphore(_AT_A_TIME)

    def read(self, files: Sequence[UploadedFile]) -> ReadUpload:
        """Read files one after another; together they may hold as much text as one upload may.

        Raises:
            InputError: none of them could be read; says why.
        """
        rows: dict[str, Mapping[str, str]] = {}
        skipped: list[Skipped] = []
        for document in self._documents(files, skipped):
            key = unique_key(document.name, rows)
            rows[key] = {"id": key, "title": document.title, "text": document.text}
        if not rows:
            raise InputError(
                "no document could be read", hint="; ".join(map(_shown, skipped[:_SHOWN_REASONS]))
            )
        return ReadUpload(tuple(rows.values()), tuple(skipped))

    def _documents(
        self, files: Sequence[UploadedFile], skipped: list[Skipped]
    ) -> Iterator[ParsedDocument]:
        left = self._limits.text_bytes
        for file in files:
            with self._turns:
                limits = replace(self._limits, text_bytes=left)
                parsed = parse_file(file.name, file.content, limits)
            left -= parsed.text_bytes
            if parsed.reason is not None:
                skipped.append(Skipped(document_key(file.name), parsed.reason))
            yield from parsed.documents


def _shown(skipped: Skipped) -> str:
    return f"{skipped.file} {skipped.reason}"
