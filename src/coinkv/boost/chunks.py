"""Chunks of a prompt: where it is cut, so that the same passage gives the same chunks again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from coinkv.boost.keys import Ids
from coinkv.errors import InputError

Boundaries = Literal["content", "fixed", "adaptive"]
SMALLEST_TARGET, LARGEST_TARGET = 8, 4096
_SLIDE = 16
"""How far `adaptive` moves a cut to find a natural one (arXiv 2608.21362)."""
_LONGEST = 4
"""A chunk of `content` is at most so many times the target."""
_AROUND = 4
"""Tokens on either side of a cut that its hash is made of."""
_SENTENCE_ENDS = (".", "!", "?", ";", "\u3002", "\uff01", "\uff1f")
_WORD_STARTS = (" ", "\u0120", "\u2581", "\n", "\t", "\u010a")  # also as vocabularies spell them


class Vocabulary:
    """What the tokens of a vocabulary say about a cut next to them.

    Args:
        tokenizer: a `tokenizers.Tokenizer`.
        special_ids: tokens that are no text ("<|im_end|>").
    """

    def __init__(self, tokenizer: Any, special_ids: Sequence[int] = ()) -> None:
        size = tokenizer.get_vocab_size(with_added_tokens=True)
        texts = tokenizer.decode_batch([[number] for number in range(size)])
        names = [tokenizer.id_to_token(number) or "" for number in range(size)]
        self._breaks = np.array([min(_ending_breaks(text), 2) for text in texts], np.int8)
        self._ends = np.array([text.rstrip().endswith(_SENTENCE_ENDS) for text in texts])
        self._starts = np.array([name.startswith(_WORD_STARTS) for name in names])
        self._special = np.zeros(size, dtype=bool)
        self._special[[number for number in special_ids if number < size]] = True

    def kinds(self, ids: Ids) -> npt.NDArray[np.uint8]:
        """How natural a cut before each token is, `[tokens]`.

        Returns:
            0 a paragraph or a turn of a conversation ends, 1 a line, 2 a sentence, 3 a word, 4 none
            of them. The first token's is 0.
        """
        known = np.where((ids >= 0) & (ids < len(self._special)), ids, 0)
        breaks, special = self._breaks[known], self._special[known]
        before = np.zeros(len(ids), dtype=bool)
        before[1:] = breaks[:-1] > 0
        kinds = np.full(len(ids), 4, np.uint8)
        kinds[self._starts[known]] = 3
        after = kinds[1:]  # of the cut behind each token but the last
        after[self._ends[known][:-1] & self._starts[known][1:]] = 2
        after[breaks[:-1] > 0] = 1
        after[(breaks[:-1] == 2) | ((breaks[:-1] == 1) & before[:-1]) | special[:-1]] = 0
        kinds[:1] = 0
        return kinds


class Chunker(ABC):
    """Cuts the tokens of a prompt into chunks.

    Args:
        vocabulary: tells natural cuts from others.
        target: tokens of a chunk, about or exactly.
    """

    def __init__(self, vocabulary: Vocabulary, target: int) -> None:
        self.vocabulary = vocabulary
        self.target = target

    @abstractmethod
    def cuts(self, ids: Ids) -> list[int]:
        """Where chunks begin, ascending, 0 among them.

        Tokens `[cuts[i], cuts[i + 1])` are a chunk. What follows the last cut is no chunk yet:
        more text could still move its end.

        Args:
            ids: int32 `[tokens]`.
        """


class ContentChunker(Chunker):
    """Cuts that depend on the text around them only.

    A cut is made where the pair (kind of boundary, hash of the tokens around it) is the least
    within half a target of tokens on either side; kinds are paragraph, line, sentence, word, any.
    So cuts are about a target apart, two are never closer than half of it, and a passage is cut in
    the same places whatever stands before it, from half a target behind its beginning on. Where
    a text repeats itself for so long that no place is the least, chunks have at most four targets.
    """

    def cuts(self, ids: Ids) -> list[int]:
        """See `Chunker.cuts`."""
        reach = self.target // 2
        count = len(ids)
        if count <= reach:
            return [0] if count else []
        score = (self.vocabulary.kinds(ids).astype(np.uint64) << np.uint64(60)) | _hashes(ids)
        score[0] = np.iinfo(np.uint64).max  # a prompt's beginning is no reason to cut nearby
        padded = np.full(count + 2 * reach, np.iinfo(np.uint64).max, np.uint64)
        padded[reach : reach + count] = score
        least = np.lib.stride_tricks.sliding_window_view(padded, reach).min(axis=1)
        before, after = least[:count], least[reach + 1 : reach + 1 + count]
        found = np.flatnonzero((score < before) & (score <= after))
        settled = count - reach - _AROUND + 1  # from here on later text could still be the least
        found = found[(found >= reach) & (found < settled)]
        return _split([0, *found.tolist()], settled, self.target * _LONGEST, reach)


class FixedChunker(Chunker):
    """A cut after every `target` tokens."""

    def cuts(self, ids: Ids) -> list[int]:
        """See `Chunker.cuts`."""
        return list(range(0, len(ids) + 1, self.target)) if len(ids) else []


class AdaptiveChunker(Chunker):
    """A cut after about `target` tokens: the natural one nearest within 16, as in arXiv 2608.21362.

    A chunk's end depends on where it began, so a shift of the text moves all cuts behind it.
    """

    def cuts(self, ids: Ids) -> list[int]:
        """See `Chunker.cuts`."""
        if not len(ids):
            return []
        natural = self.vocabulary.kinds(ids) <= 2
        slide = min(_SLIDE, self.target // 2)
        cuts = [0]
        while (wanted := cuts[-1] + self.target) + slide < len(ids):
            near = np.flatnonzero(natural[wanted - slide : wanted + slide + 1]) - slide
            cuts.append(wanted + (int(near[np.abs(near).argmin()]) if len(near) else 0))
        return cuts


def chunker_named(name: str, vocabulary: Vocabulary, target: int) -> Chunker:
    """The chunker of this name.

    Raises:
        InputError: there is none, or the target is out of range.
    """
    require_chunker(name, target)
    kinds: dict[str, type[Chunker]] = {
        "content": ContentChunker,
        "fixed": FixedChunker,
        "adaptive": AdaptiveChunker,
    }
    return kinds[name](vocabulary, target)


def require_chunker(name: str, target: int) -> None:
    """Refuse what `chunker_named` would refuse.

    Raises:
        InputError: there is no chunker of this name, or the target is out of range.
    """
    known = get_args(Boundaries)
    if name not in known:
        raise InputError(f"boundaries is {name!r}", hint=f"use one of {', '.join(known)}")
    if not SMALLEST_TARGET <= target <= LARGEST_TARGET:
        raise InputError(
            f"chunk_tokens is {target}", hint=f"use {SMALLEST_TARGET} to {LARGEST_TARGET}"
        )


def _ending_breaks(text: str) -> int:
    """Line breaks at the end of a token's text; an indentation may follow them."""
    return text[len(text.rstrip()) :].count("\n")


def _hashes(ids: Ids) -> npt.NDArray[np.uint64]:
    """A 60-bit hash of the tokens on either side of each place (splitmix64 of a weighted sum)."""
    padded = np.zeros(len(ids) + 2 * _AROUND, np.uint64)
    padded[_AROUND : _AROUND + len(ids)] = ids.astype(np.uint64) + np.uint64(1)
    total = np.zeros(len(ids), np.uint64)
    for place in range(2 * _AROUND):
        total = total * np.uint64(0x9E3779B97F4A7C15) + padded[place : place + len(ids)]
    total ^= total >> np.uint64(30)
    total *= np.uint64(0xBF58476D1CE4E5B9)
    total ^= total >> np.uint64(27)
    total *= np.uint64(0x94D049BB133111EB)
    return (total ^ (total >> np.uint64(31))) >> np.uint64(4)


def _split(cuts: list[int], end: int, longest: int, shortest: int) -> list[int]:
    """Cuts with more of them wherever two are too far apart, none nearer than `shortest`."""
    every: list[int] = []
    for start, stop in zip(cuts, [*cuts[1:], end], strict=True):
        every += range(start, max(stop - shortest, start) + 1, longest - shortest)
    return every
