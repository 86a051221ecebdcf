"""The ledger grows by whole rows, whoever is killed, and knows what is done."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coinkv.errors import InputError, StorageError
from coinkv.evaluate.configuration import Configuration
from coinkv.evaluate.ledger import Done, Ledger
from coinkv.evaluate.rows import read_rows
from sweep_rows import answers, timing

COINRAG = Configuration("coinrag", 3, 10)
DEV = ("hotpotqa", "dev")
ROW = answers(ids=["a", "b"])
FINGERPRINT = ROW["fingerprint"]


def rows_of(path):
    rows, cut = read_rows(path)
    assert not cut
    return [row.fields for row in rows]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "folder" / "results.jsonl"


def test_rows_are_added_behind_each_other(path):
    ledger = Ledger(path)
    ledger.add([ROW])
    ledger.add([timing(ROW, n, [1.0, 2.0]) for n in (0, 1)])
    assert [row["kind"] for row in rows_of(path)] == ["answers", "timing", "timing"]
    assert rows_of(path)[0] == ROW


@given(st.dictionaries(st.text(st.characters(), max_size=4), st.text(st.characters())))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
def test_whatever_a_text_holds_a_row_is_one_line(path, fields):
    path.unlink(missing_ok=True)
    Ledger(path).add([fields, ROW])
    assert rows_of(path) == [fields, ROW]


def test_wherever_a_kill_cut_the_file_whole_rows_stay_and_the_next_is_added(path):
    before = [{"kind": "x", "text": "ä\u2028"}, {"kind": "y", "n": [1, {"m": 2}]}]
    Ledger(path).add(before)
    content = path.read_bytes()
    first = content.index(b"\n") + 1
    for end in range(len(content) + 1):
        path.write_bytes(content[:end])
        whole = (end >= first - 1) + (end >= len(content) - 1)  # the line feed may be what is lost
        known = [row.fields for row in read_rows(path)[0]]
        Ledger(path).add([ROW])
        assert known == before[:whole]
        assert rows_of(path) == [*before[:whole], ROW]


def test_of_what_is_done_the_last_row_counts(path):
    ledger = Ledger(path)
    assert ledger.done(DEV, COINRAG, FINGERPRINT) == Done()
    ledger.add([ROW, timing(ROW, 0, [1.0]), timing(ROW, 1, [2.0]), timing(ROW, 0, [3.0])])
    done = ledger.done(DEV, COINRAG, FINGERPRINT)
    assert done.ids == {"a", "b"}
    assert {number: row["ttft_ms"] for number, row in done.rounds.items()} == {0: [3.0], 1: [2.0]}
    ledger.add([answers(ids=["c"], answer_tokens=7)])
    done = ledger.done(DEV, COINRAG, FINGERPRINT)
    assert (done.ids, done.answers["answer_tokens"]) == ({"c"}, 7)
    assert len(done.rounds) == 2


def test_rows_that_another_process_added_are_known(path):
    mine, other = Ledger(path), Ledger(path)
    mine.add([answers("epic", k_nuggets=None)])
    assert mine.done(DEV, COINRAG, FINGERPRINT).answers is None
    other.add([ROW])
    assert mine.done(DEV, COINRAG, FINGERPRINT).ids == {"a", "b"}


def test_a_run_is_known_by_set_half_configuration_and_backbone(path):
    ledger = Ledger(path)
    ledger.add([ROW])
    others = (
        (("musique", "dev"), COINRAG, FINGERPRINT),
        (("hotpotqa", "test"), COINRAG, FINGERPRINT),
        (DEV, Configuration("coinrag", 3, 10, (("align", False),)), FINGERPRINT),
        (DEV, Configuration("coinrag", 3, 10, index="windows"), FINGERPRINT),
        (DEV, Configuration("coinrag", 3, 10, adapter="lora"), FINGERPRINT),
        (DEV, COINRAG, "another"),
    )
    assert [ledger.done(*run).answers for run in others] == [None] * len(others)
    assert ledger.done(DEV, COINRAG, FINGERPRINT).answers is not None


def test_of_many_that_add_at_once_no_row_is_lost(path):
    def add(writer):
        ledger = Ledger(path)
        for n in range(20):
            ledger.add([{"kind": "x", "writer": writer, "n": n, "more": "y" * 3000}])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, range(4)))
    found = [(row["writer"], row["n"]) for row in rows_of(path)]
    assert sorted(found) == [(writer, n) for writer in range(4) for n in range(20)]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('{"question": "Why?", "answers": ["so"]}\n', "line 1: this is no row of a sweep"),
        ('{"question": "Why?"}', "line 1: this is no row of a sweep"),
        ("Once upon a time there was no line feed", "its last line is no row"),
        ("Once\nupon\n", "line 1: this line is not JSON"),
        ("[1, 2]\n", "line 1: this line is no JSON object"),
        ('{"kind": "answers", "method": "coinrag"}\n', "line 1: the row has no `k_chunks`"),
        (json.dumps({**ROW, "per_question": [{"f1": 1}]}) + "\n", "has no `id`"),
        (json.dumps({**timing(ROW, 0, [1.0]), "ttft_ms": "fast"}) + "\n", "`ttft_ms` is 'fast'"),
    ],
)
def test_a_file_of_something_else_is_refused_and_left_alone(tmp_path, content, says):
    path = tmp_path / "essay.txt"
    path.write_text(content)
    with pytest.raises(InputError, match=says):
        Ledger(path).require_usable()
    assert path.read_text() == content


def test_rows_of_kinds_that_are_not_known_are_passed_over(path):
    ledger = Ledger(path)
    ledger.add([{"kind": "later"}, ROW])
    assert ledger.done(DEV, COINRAG, FINGERPRINT).ids == {"a", "b"}


def test_a_ledger_that_can_be_used_is_an_empty_file_at_first(path):
    Ledger(path).require_usable()
    assert path.read_bytes() == b""
    Ledger(path).require_usable()


def test_a_file_that_cannot_be_written_is_said_in_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "results.jsonl", tmp_path / ("x" * 300)):
        with pytest.raises(StorageError, match="the results cannot be written"):
            Ledger(path).require_usable()
    with pytest.raises(InputError, match="Is a directory"):
        Ledger(tmp_path).require_usable()
