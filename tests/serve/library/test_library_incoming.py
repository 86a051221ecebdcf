"""What a client was told is kept is on the disk, in order, whole, or not at all."""

from __future__ import annotations

import pytest

from coinkv.errors import StorageError
from coinkv.serve.library.incoming import Incoming
from coinkv.serve.library.jobs import new_job_id

ROW = {"id": "a.txt", "title": "A", "text": "line\u2028separator"}


def test_changes_are_found_again_in_the_order_in_which_they_were_written(tmp_path):
    incoming = Incoming(tmp_path)
    jobs = [new_job_id(), new_job_id()]
    incoming.write("add", jobs[0], [ROW])
    incoming.write("remove", jobs[1], [{"id": "a.txt"}])
    found = Incoming(tmp_path).changes()
    assert [(change.kind, change.job) for change in found] == [
        ("add", jobs[0]),
        ("remove", jobs[1]),
    ]
    assert found[0].rows() == [ROW]
    assert found[1].rows() == [{"id": "a.txt"}]


def test_a_later_server_goes_on_counting_where_the_last_one_was(tmp_path):
    first = Incoming(tmp_path).write("add", new_job_id(), [ROW])
    second = Incoming(tmp_path).write("add", new_job_id(), [ROW])
    assert second.number > first.number


def test_what_was_cut_off_while_it_was_written_is_cleared_away(tmp_path):
    incoming = Incoming(tmp_path)
    change = incoming.write("add", new_job_id(), [ROW])
    half = tmp_path / f"{change.path.stem}.0123456789abcdef-1-{'0' * 32}.part"
    half.write_text('{"id": "half')
    assert incoming.changes() == [change]
    assert not half.exists()


def test_a_finished_change_is_gone_and_finishing_it_twice_is_no_error(tmp_path):
    change = Incoming(tmp_path).write("purge", new_job_id(), [{"generation": 3}])
    change.finish()
    change.finish()
    assert Incoming(tmp_path).changes() == []
    with pytest.raises(StorageError, match="cannot be read"):
        change.rows()


def test_a_change_that_cannot_be_kept_leaves_nothing(tmp_path):
    blocked = tmp_path / "incoming"
    blocked.write_text("a file where the folder should be")
    incoming = Incoming(blocked)
    with pytest.raises(StorageError, match="cannot be kept"):
        incoming.write("add", new_job_id(), [ROW])
    assert list(tmp_path.iterdir()) == [blocked]
