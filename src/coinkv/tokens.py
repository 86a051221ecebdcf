"""Tokens of a text and the characters they stand for: what corpus and model share."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tokenized:
    """Token ids without special tokens and, for each, its character range `[start, end)`.

    Several byte-level tokens of one character share that character's range.
    """

    ids: tuple[int, ...]
    offsets: tuple[tuple[int, int], ...]
