"""The plan of a prompt: what of it is reused exactly, what is moved, what is computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, get_args

import numpy as np

from coinkv.boost.keys import Ids, PrefixHashes, content_hash
from coinkv.boost.tree import Place, RunTree, Stretch
from coinkv.errors import InputError
from coinkv.repair.base import Moved

Reuse = Literal["all", "exact", "none"]
_LOOK_BACK = 1024
"""How much of the left context is compared when copies of a chunk differ in it."""


@dataclass(frozen=True)
class Part:
    """Consecutive tokens of the prompt that are reused, from one encoding.

    Attributes:
        start: their first position in the prompt.
        stretches: where their KV is, in order.
        moved: they were encoded behind other tokens: their KV is approximate, also where the
            position happens to be the same. Otherwise it is what computing the prompt would give.
    """

    start: int
    stretches: tuple[Stretch, ...]
    moved: bool

    @property
    def end(self) -> int:
        """One past their last position."""
        return self.start + sum(map(len, self.stretches))


@dataclass(frozen=True, eq=False)
class Plan:
    """What happens to the tokens of a prompt. Making one calls no model.

    Attributes:
        ids: int32 `[tokens]` of the prompt.
        cuts: where its chunks begin.
        parts: what is reused, in order, disjoint.
        reuse: what was allowed.
    """

    ids: Ids
    cuts: tuple[int, ...]
    parts: tuple[Part, ...]
    reuse: Reuse = "all"

    @property
    def exact_tokens(self) -> int:
        """Tokens whose KV is what computing the prompt would give."""
        return sum(part.end - part.start for part in self.parts if not part.moved)

    @property
    def moved_tokens(self) -> int:
        """Tokens whose KV was made behind other tokens."""
        return sum(part.end - part.start for part in self.parts if part.moved)

    @property
    def exact_until(self) -> int:
        """The position from which on what is computed stands behind approximate KV."""
        return next((part.start for part in self.parts if part.moved), len(self.ids))

    @property
    def computed_tokens(self) -> int:
        """Tokens of which no KV is kept."""
        return len(self.ids) - self.exact_tokens - self.moved_tokens

    def unused(self) -> Plan:
        """The plan with everything computed."""
        return replace(self, parts=())

    def unmoved(self) -> Plan:
        """The plan with everything computed that would have been moved."""
        return replace(self, parts=tuple(part for part in self.parts if not part.moved))

    @property
    def holes(self) -> tuple[tuple[int, int], ...]:
        """The ranges `[start, end)` of them."""
        edges = [(0, 0), *((part.start, part.end) for part in self.parts), (len(self.ids),) * 2]
        return tuple((left[1], right[0]) for left, right in pairwise(edges) if left[1] < right[0])

    @property
    def moved(self) -> tuple[Moved, ...]:
        """The moved parts as repair sees them: each begins with a seam."""
        return tuple(
            Moved(part.start, part.end, tuple(c for c in self.cuts if part.start < c < part.end))
            for part in self.parts
            if part.moved
        )


def make_plan(
    tree: RunTree,
    ids: Ids,
    cuts: Sequence[int],
    salt: bytes,
    *,
    reuse: Reuse = "all",
    movable: frozenset[str] | None = None,
) -> Plan:
    """Find everything of a prompt that is kept; its last token is always left to be computed.

    First the longest exact beginning. Behind it, every chunk whose content is kept is an anchor: of
    its copies one is taken that was encoded behind the very same tokens, or else the one whose left
    context is most like the present one, and the match is extended to both sides, token by token,
    along the text it was encoded in. Within such a part there is no seam, since it was computed in
    one piece.

    Args:
        tree: what is kept.
        ids: int32 `[tokens]`.
        cuts: where chunks begin, ascending.
        salt: of the hashes.
        reuse: `all`; `exact`: nothing moved; `none`.
        movable: keys of the runs that may be moved; None: all.
    """
    search = _Search(tree, ids, salt, reuse, movable)
    parts: list[Part] = []
    if reuse != "none":
        parts += search.beginning()
        parts += search.anchored(cuts, parts[-1].end if parts else 0)
    return Plan(ids, tuple(cuts), tuple(parts), reuse)


def require_reuse(reuse: str) -> None:
    """Refuse a kind of reuse that does not exist.

    Raises:
        InputError: it is none of `all`, `exact`, `none`.
    """
    if reuse not in get_args(Reuse):
        raise InputError(f"reuse is {reuse!r}", hint=f"use one of {', '.join(get_args(Reuse))}")


class _Search:
    """One prompt's search for what is kept of it; for the arguments see `make_plan`."""

    def __init__(
        self,
        tree: RunTree,
        ids: Ids,
        salt: bytes,
        reuse: Reuse,
        movable: frozenset[str] | None,
    ) -> None:
        self._tree, self._salt, self._reuse, self._movable = tree, salt, reuse, movable
        self._hashes = PrefixHashes(ids, salt)
        self._ids = ids[: max(0, len(ids) - 1)]  # the last token's logits are what a pass is for

    def beginning(self) -> list[Part]:
        """The longest exact beginning."""
        way: list[Stretch] = []
        end = 0
        while (found := self._tree.behind(self._hashes.before(end), self._ids[end:])) is not None:
            way.append(found)
            end += len(found)
        return [Part(0, tuple(way), moved=False)] if way else []

    def anchored(self, cuts: Sequence[int], free: int) -> list[Part]:
        """What is found by content from the position `free` on."""
        parts: list[Part] = []
        for start, stop in pairwise(cuts):
            if start < free or stop > len(self._ids):
                continue
            part = self._best(start, stop, free)
            if part is not None and part.end >= stop:
                parts.append(part)
                free = part.end
        return parts

    def _best(self, start: int, stop: int, free: int) -> Part | None:
        """The best copy of a chunk, extended to both sides, to `free` at most."""
        best: tuple[tuple[bool, int, int], list[Stretch], list[Stretch]] | None = None
        for place in self._tree.variants(content_hash(self._ids[start:stop], self._salt)):
            exact = self._is_exact(place, start)
            if not exact and not self._may_move(place):
                continue
            back = self._tree.backward(place, self._ids[max(0, start - _LOOK_BACK) : start])
            onward = self._tree.along(place, self._ids[start:])
            score = exact, sum(map(len, back)), sum(map(len, onward))
            if best is None or score > best[0]:
                best = score, back, onward
        if best is None:
            return None
        (exact, _, _), back, onward = best
        back = _last(back, start - free)
        return Part(start - sum(map(len, back)), (*back, *onward), moved=not exact)

    def _is_exact(self, place: Place, start: int) -> bool:
        """Whether a row was encoded at a position, behind the very tokens that stand before it."""
        run, begins = place.run, start - place.row
        if not run.exact or run.start != begins or self._hashes.before(begins) != run.before:
            return False
        return np.array_equal(run.ids[: place.row], self._ids[begins:start])

    def _may_move(self, place: Place) -> bool:
        movable = self._movable is None or place.run.key in self._movable
        return self._reuse == "all" and movable


def _last(way: list[Stretch], tokens: int) -> list[Stretch]:
    """The last so many tokens of a way."""
    kept: list[Stretch] = []
    for stretch in reversed(way):
        if tokens <= 0:
            break
        length = min(tokens, len(stretch))
        kept.insert(0, Stretch(stretch.run, stretch.end - length, stretch.end))
        tokens -= length
    return kept
