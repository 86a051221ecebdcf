"""Chunks: a document tokenised once and cut into runs of tokens at the ends of sentences."""

from __future__ import annotations

import hashlib
import json
import re
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from coinkv.config import CHUNK_TOKENS
from coinkv.corpus.documents import Document
from coinkv.corpus.extract.sentences import CLAUSE_GAP, Span, require_language, sentence_gaps
from coinkv.errors import InputError
from coinkv.tokens import Tokenized

FEWEST_TOKENS = 16
"""A chunk may not be smaller: a header and a sentence would not fit."""

_HEADER_TOKENS = 64
_HEADER_CHARACTERS = 2000  # more than 64 tokens of any language; spares tokenising a huge title
_BLOCK = 1 << 18  # characters tokenised at a time: memory stays flat for large documents
_SPACE = re.compile(r"\s+")
_LOOKAHEAD = 240  # characters after a chunk, to tell the end of a sentence from the end of a window


class Tokenizes(Protocol):
    """What chunking needs of a tokenizer."""

    def tokenize(self, text: str) -> Tokenized:
        """Token ids of a text, without special tokens, each with its character range."""
        ...


@dataclass(frozen=True)
class Chunk:
    """A run of tokens of one document, encoded in one forward pass.

    Attributes:
        document_key: key of the document it was cut from.
        ordinal: its place among the document's chunks, from 0.
        title: the document's title.
        header_ids: tokens of the title line put before the text; empty without one.
        token_ids: header tokens, then body tokens; what the model encodes.
        offsets: for each body token its characters `[start, end)` in `text`. The ranges are in
            order and together cover `text`; tokens that share a character overlap.
        text: the document's text `[start:end]`.
        start: first character in the document's text.
        end: one past the last character in the document's text.
    """

    document_key: str
    ordinal: int
    title: str
    header_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    offsets: tuple[Span, ...]
    text: str
    start: int
    end: int

    @property
    def header_tokens(self) -> int:
        """How many of `token_ids` belong to the title header."""
        return len(self.header_ids)

    @property
    def content_hash(self) -> str:
        """SHA-256 in hex of header tokens, body tokens and text; place and document left out."""
        return content_hash(self.token_ids, self.header_tokens, self.text)


def content_hash(token_ids: Sequence[int], header_tokens: int, text: str) -> str:
    """SHA-256 in hex of a chunk's header tokens, body tokens and text."""
    content = [list(token_ids[:header_tokens]), list(token_ids[header_tokens:]), text]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


@dataclass(frozen=True)
class _Body:
    """A document's tokens; `starts` and `ends` are in order and leave no character out."""

    ids: array[int]
    starts: array[int]
    ends: array[int]

    def may_cut(self, token: int) -> bool:
        """Whether no character is shared between this token and the one before."""
        return self.ends[token - 1] <= self.starts[token]


def split(
    document: Document,
    tokenizer: Tokenizes,
    *,
    max_tokens: int = CHUNK_TOKENS,
    title_header: bool = True,
    language: str = "en",
) -> list[Chunk]:
    r"""Cut a document into chunks of at most `max_tokens` tokens, title header included.

    The text is tokenised once and chunks are runs of its tokens. They cover the text without
    overlap; what lies between two chunks, if anything, is white space alone. A cut falls in the
    last quarter of the chunk, at a sentence end, else a clause boundary, else white space, else
    anywhere; never between tokens of one character unless that character alone fills a chunk.

    Args:
        document: the document.
        tokenizer: the backbone's.
        max_tokens: at least 16 (the paper, arXiv 2608.07458, takes 512).
        title_header: put the tokens of `title\n` first, cut to 64 and to half a chunk.
        language: ISO 639-1 code, for the ends of sentences.

    Raises:
        InputError: `max_tokens` below 16, or a language without sentence rules.
    """
    if max_tokens < FEWEST_TOKENS:
        raise InputError(
            f"chunks of {max_tokens} tokens are too small", hint=f"take {FEWEST_TOKENS} or more"
        )
    require_language(language)
    header = _header(document.title, tokenizer, max_tokens) if title_header else ()
    body = _body(document.text, tokenizer)
    chunks: list[Chunk] = []
    for first, last in _runs(document.text, body, max_tokens - len(header), language):
        chunk = _chunk(document, len(chunks), header, body, first, last)
        if chunk.text.strip():
            chunks.append(chunk)
    return chunks


def _chunk(
    document: Document, ordinal: int, header: tuple[int, ...], body: _Body, first: int, last: int
) -> Chunk:
    start, end = body.ends[first - 1] if first else 0, body.ends[last - 1]
    ranges = zip(body.starts[first:last], body.ends[first:last], strict=True)
    return Chunk(
        document_key=document.key,
        ordinal=ordinal,
        title=document.title,
        header_ids=header,
        token_ids=header + tuple(body.ids[first:last]),
        offsets=tuple((max(left - start, 0), right - start) for left, right in ranges),
        text=document.text[start:end],
        start=start,
        end=end,
    )


def _header(title: str, tokenizer: Tokenizes, max_tokens: int) -> tuple[int, ...]:
    title = " ".join(title[:_HEADER_CHARACTERS].split())
    limit = min(_HEADER_TOKENS, max_tokens // 2)
    while title:
        header = tokenizer.tokenize(f"{title}\n")
        if len(header.ids) <= limit:
            return tuple(header.ids)
        # The newline may merge with what now stands before it, so the shorter title is tried anew.
        title = title[: min(header.offsets[limit - 1][0], len(title) - 1)].rstrip()
    return ()


def _body(text: str, tokenizer: Tokenizes) -> _Body:
    body = _Body(array("q"), array("q"), array("q"))
    reached = 0
    for base, block in _blocks(text):
        tokens = tokenizer.tokenize(block)
        body.ids.extend(tokens.ids)
        for start, end in tokens.offsets:
            # Tokenizers leave leading spaces out: a gap belongs to the token behind it. A range
            # that lies wholly behind us says nothing, so its token gets no characters.
            shared = start + base < reached <= end + base and body.starts
            body.starts.append(max(start + base, body.starts[-1]) if shared else reached)
            reached = max(reached, end + base)
            body.ends.append(reached)
    if body.ends:
        body.ends[-1] = len(text)
    return body


def _blocks(text: str) -> Iterator[tuple[int, str]]:
    """The text in pieces with their first character, cut at line ends or spaces."""
    start = 0
    while start < len(text):
        limit = start + _BLOCK
        if limit < len(text):
            line, space = text.rfind("\n", start, limit) + 1, text.rfind(" ", start + 1, limit)
            limit = line or (space if space > start else limit)
        yield start, text[start:limit]
        start = limit


def _runs(text: str, body: _Body, budget: int, language: str) -> Iterator[Span]:
    first = 0
    while first < len(body.ids):
        last = first + budget
        last = len(body.ids) if last >= len(body.ids) else _cut(text, body, first, last, language)
        yield first, last
        first = last


def _cut(text: str, body: _Body, first: int, limit: int, language: str) -> int:
    """The token before which to cut; `limit` at most."""
    earliest = limit - (limit - first) // 4
    allowed = [token for token in range(earliest, limit + 1) if body.may_cut(token)]
    if not allowed:
        before = (token for token in range(earliest - 1, first, -1) if body.may_cut(token))
        return next(before, limit)
    start = body.ends[first - 1] if first else 0
    window = text[start : body.ends[limit - 1] + _LOOKAHEAD]
    since = body.ends[earliest - 1] - start
    characters = [body.ends[token - 1] - start for token in allowed]
    for gaps in _gaps(window, since, language):
        for left, right in reversed(gaps):
            last = bisect_right(characters, right) - 1
            if last >= 0 and characters[last] >= left:
                return allowed[last]
    return allowed[-1]


def _gaps(window: str, since: int, language: str) -> Iterator[list[Span]]:
    """Where the text may be cut, best kind first, each as the white space of the cut."""
    yield sentence_gaps(window, language, since=since)
    yield [match.span() for match in CLAUSE_GAP.finditer(window, since)]
    yield [match.span() for match in _SPACE.finditer(window, since)]
