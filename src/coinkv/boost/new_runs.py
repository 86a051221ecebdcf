"""New runs: what a pass has computed, cut into runs that continue each other."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from itertools import pairwise

from coinkv.boost.keys import Ids, PrefixHashes, content_hash
from coinkv.boost.plan import Plan
from coinkv.boost.runs import Run
from coinkv.boost.tree import Place, RunTree, Stretch
from coinkv.store.base import block_key

RUN_TOKENS = 256
"""Tokens of a run: whole pages, so that codecs by page lose nothing."""
FEWEST_TOKENS = 16
"""Fewer tokens than these are cheaper to compute again than to keep."""


def new_runs(
    tree: RunTree, plan: Plan, ids: Ids, cuts: Sequence[int], fingerprint: str, salt: bytes
) -> Iterator[Run]:
    """The tokens of which no KV was kept, as runs; never a copy of what was reused.

    Behind moved KV the new KV is approximate. Its runs carry digests that no prompt has, and are
    worth keeping only where they hold a whole chunk, by whose content they can be found.

    Args:
        tree: what is kept.
        plan: what the pass followed.
        ids: int32, the prompt's tokens and those of its answer.
        cuts: where the chunks of `ids` begin.
        fingerprint: of the model.
        salt: of the hashes.
    """
    every = {begin: ids[begin:end] for begin, end in pairwise(cuts)}
    for start, stop in [*plan.holes[:-1], (plan.holes[-1][0], len(ids))]:
        exact = start < plan.exact_until
        start, last = _continued(tree, plan, ids, start, stop) if exact else (start, None)
        chunks = {
            begin: content_hash(chunk, salt)
            for begin, chunk in every.items()
            if start <= begin and begin + len(chunk) <= stop
        }
        if stop - start < FEWEST_TOKENS or not (exact or chunks):
            continue
        hashes = PrefixHashes(ids, salt if exact else uuid.uuid4().bytes)
        parent, parent_tokens = (last.run.key, last.end) if last is not None else (None, 0)
        for begin, end in _pieces(start, stop):
            before = hashes.before(begin)
            run = Run(
                key=block_key(fingerprint, content_hash(ids[begin:end], salt), before),
                ids=ids[begin:end].copy(),
                start=begin,
                before=before,
                after=hashes.before(end),
                parent=parent,
                parent_tokens=parent_tokens,
                exact=exact,
                chunks=tuple((at - begin, chunks[at]) for at in chunks if begin <= at < end),
                owner=salt.hex(),
            )
            parent, parent_tokens = run.key, len(run)
            yield run


def _continued(
    tree: RunTree, plan: Plan, ids: Ids, start: int, stop: int
) -> tuple[int, Stretch | None]:
    """Where what is new of the tokens `[start, stop)` begins, and what it continues.

    A prompt's last token is computed though its KV may be kept; kept once more it would end the way
    to what follows.
    """
    last = next((part.stretches[-1] for part in plan.parts if part.end == start), None)
    if last is None:
        return start, None
    known = tree.along(Place(last.run, last.end), ids[start:stop])
    return start + sum(map(len, known)), known[-1] if known else last


def _pieces(start: int, stop: int) -> list[tuple[int, int]]:
    """A range in pieces of `RUN_TOKENS`; too short a rest joins the piece before it."""
    starts = list(range(start, stop, RUN_TOKENS))
    if len(starts) > 1 and stop - starts[-1] < FEWEST_TOKENS:
        starts.pop()
    return list(zip(starts, [*starts[1:], stop], strict=True))
