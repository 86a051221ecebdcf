"""Keys, runs and their tree: equal digests mean equal tokens, and ways along runs are whole."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coinkv.boost.keys import PrefixHashes, content_hash, salted
from coinkv.boost.runs import Run
from coinkv.boost.tree import MOST_VARIANTS, Place, RunTree, Stretch

ids_lists = st.lists(st.integers(0, 5), max_size=30).map(lambda ids: np.array(ids, np.int32))
SALT = salted("model", "raw", "")


def run_of(ids, *, start=0, parent=None, at=0, exact=True, chunks=(), before="", name=""):
    key = f"{name or before}/{','.join(map(str, ids))}"
    return Run(
        key, np.array(ids, np.int32), start, before, key, parent, at, exact, tuple(chunks), "me"
    )


def rows(way):
    return [(stretch.run.key, stretch.start, stretch.end) for stretch in way]


@given(ids=ids_lists, places=st.lists(st.integers(0, 30), max_size=8))
def test_a_prefix_digest_is_that_of_the_tokens_before_a_place_in_any_order_of_asking(ids, places):
    hashes = PrefixHashes(ids, SALT)
    for place in [min(place, len(ids)) for place in places]:
        assert hashes.before(place) == PrefixHashes(ids[:place].copy(), SALT).before(place)


@given(first=ids_lists, second=ids_lists)
def test_digests_are_equal_where_tokens_are(first, second):
    same = first.tolist() == second.tolist()
    digests = [PrefixHashes(ids, SALT).before(len(ids)) for ids in (first, second)]
    assert (digests[0] == digests[1]) == same
    assert (content_hash(first, SALT) == content_hash(second, SALT)) == same


def test_model_and_namespace_are_part_of_every_digest():
    ids = np.arange(5, dtype=np.int32)
    salts = [salted(*each) for each in ("abc", ("ab", "c", ""), ("", "a", "bc"), "bac", "acb")]
    assert len({content_hash(ids, salt) for salt in salts}) == 5
    assert len({PrefixHashes(ids, salt).before(0) for salt in salts}) == 5
    assert content_hash(ids, SALT) != PrefixHashes(ids, SALT).before(5)


def test_digests_are_the_same_in_every_process():
    """REFERENCE 7, row 13: keys depended on PYTHONHASHSEED."""
    code = (
        "import numpy as np; from coinkv.boost.keys import *; "
        "print(content_hash(np.arange(9, dtype=np.int32), salted('m', 'raw', 'n')))"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert printed == {content_hash(np.arange(9, dtype=np.int32), salted("m", "raw", "n"))}


def test_a_run_is_read_back_from_its_note_as_it_was():
    run = run_of([1, 2, 70000], start=4, parent="p", at=2, exact=False, chunks=[(0, "c"), (2, "d")])
    back = Run.from_note(run.key, run.to_note())
    assert back.ids.dtype == np.int32
    assert back.ids.tolist() == run.ids.tolist()
    assert replace(back, ids=run.ids).__dict__ == run.__dict__


@pytest.mark.parametrize(
    "note",
    [
        b"",
        b"{}",
        b"\xff\xfe",
        b"[1, 2]",
        b'"text"',
        b"null",
        b'{"version": 1}',
        b'{"version": 99}',
        run_of([1, 2]).to_note()[:-9],
        run_of([1, 2]).to_note().replace(b'"ids":"', b'"ids":"!'),
        run_of([1, 2]).to_note().replace(b'"ids":"A', b'"ids":"'),
        run_of([1, 2]).to_note().replace(b'"chunks":[]', b'"chunks":[[0]]'),
        run_of([1, 2]).to_note().replace(b'"chunks":[]', b'"chunks":7'),
    ],
)
def test_a_note_that_is_none_is_no_run(note):
    assert Run.from_note("key", note) is None


def test_the_way_along_goes_on_in_what_continues_a_run_also_where_two_part():
    tree = RunTree()
    root = run_of([1, 2, 3, 4])
    behind = run_of([5, 6], parent=root.key, at=4, before="end")
    fork = run_of([9, 8], parent=root.key, at=2, before="middle")
    for run in (root, behind, fork):
        tree.add(run)
    wanted = np.array([2, 3, 4, 5, 6, 7], np.int32)
    assert rows(tree.along(Place(root, 1), wanted)) == [(root.key, 1, 4), (behind.key, 0, 2)]
    wanted = np.array([1, 2, 9, 7], np.int32)
    assert rows(tree.along(Place(root, 0), wanted)) == [(root.key, 0, 2), (fork.key, 0, 1)]
    assert tree.along(Place(root, 0), np.array([7], np.int32)) == []


def test_the_way_back_goes_on_in_what_a_run_continues():
    tree = RunTree()
    root = run_of([1, 2, 3, 4])
    fork = run_of([9, 8], parent=root.key, at=2, before="middle")
    tree.add(root)
    tree.add(fork)
    back = tree.backward(Place(fork, 1), np.array([7, 1, 2, 9], np.int32))
    assert rows(back) == [(root.key, 0, 2), (fork.key, 0, 1)]
    assert rows(tree.backward(Place(fork, 1), np.array([9], np.int32))) == [(fork.key, 0, 1)]
    assert tree.backward(Place(fork, 1), np.array([8], np.int32)) == []
    tree.drop(root.key)
    back = tree.backward(Place(fork, 1), np.array([1, 2, 9], np.int32))
    assert rows(back) == [(fork.key, 0, 1)]


def test_only_exact_runs_are_found_behind_a_digest():
    tree = RunTree()
    tree.add(run_of([1, 2, 3], before="d", exact=False, name="approximate"))
    assert tree.behind("d", np.array([1, 2], np.int32)) is None
    exact = run_of([1, 2], before="d")
    tree.add(exact)
    assert tree.behind("d", np.array([1, 2, 3], np.int32)) == Stretch(exact, 0, 2)
    assert tree.behind("e", np.array([1, 2, 3], np.int32)) is None
    assert tree.behind("d", np.array([], np.int32)) is None


def test_a_copy_that_is_dropped_takes_no_other_with_it():
    """REFERENCE 1.4, row 19: content pointed to the newest twin and was lost with it."""
    tree = RunTree()
    twins = [run_of([1, 2], before=str(number), chunks=[(0, "c")]) for number in range(7)]
    for twin in twins:
        tree.add(twin)
    for number, twin in enumerate(twins):
        found = tree.variants("c")
        assert len(found) == min(MOST_VARIANTS, 7 - number)
        assert tree.crowded("c") == (7 - number >= MOST_VARIANTS)
        assert twin.key in {place.run.key for place in found}
        tree.drop(twin.key)
    assert tree.variants("c") == []
    assert len(tree) == 0


def test_a_dropped_run_is_found_nowhere_and_dropping_twice_is_no_error():
    tree = RunTree()
    root = run_of([1, 2], before="d", chunks=[(0, "c"), (1, "e")])
    behind = run_of([3], parent=root.key, at=2, before="f")
    tree.add(root)
    tree.add(behind)
    tree.add(root)
    assert len(tree) == 2
    for _ in range(2):
        tree.drop(behind.key)
        tree.drop("unknown")
    assert rows(tree.along(Place(root, 0), np.array([1, 2, 3], np.int32))) == [(root.key, 0, 2)]
    tree.drop(root.key)
    assert tree.behind("d", np.array([1], np.int32)) is None
    assert root.key not in tree
    assert tree.__dict__ == RunTree().__dict__
