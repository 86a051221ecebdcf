"""The books of a disk tier: exact, shared, and begun anew rather than believed when damaged."""

from __future__ import annotations

import logging
import random
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from kv_blocks import KEY, OTHER_KEY, block

from coinkv.errors import StorageError
from coinkv.store.disk import DiskStore
from coinkv.store.eviction import Standing
from coinkv.store.opening import ASIDE
from coinkv.store.reconcile import reconcile
from coinkv.store.usage import SCHEMA_VERSION, Usage

STANDING = Standing(100, 1.5, 10.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "usage.sqlite"


@pytest.fixture
def books(path: Path) -> Iterator[Usage]:
    usage = Usage(path)
    yield usage
    usage.close()


def add_many(books: Usage, count: int) -> list[str]:
    keys = [f"{n:064x}" for n in range(count)]
    with books.writing():
        for n, key in enumerate(keys):
            books.add(key, Standing(n + 1, 1.0, float(n)), b"note %d" % n)
    return keys


def test_all_of_a_row_comes_back_after_closing(path: Path) -> None:
    first = Usage(path)
    first.add(KEY, STANDING, b"a \x00 note")
    assert first.pin(KEY, True)
    first.used(KEY, 20.0)
    first.used(KEY, 15.0)
    first.close()
    second = Usage(path)
    assert second.standings() == {KEY: Standing(100, 1.5, 20.0, hits=2, pinned=True)}
    assert second.note(KEY) == b"a \x00 note"
    assert (second.note(OTHER_KEY), second.standing(OTHER_KEY)) == (None, None)
    assert second.pin(KEY, False)
    assert not second.pin(OTHER_KEY, True)
    assert second.standing(KEY) == Standing(100, 1.5, 20.0, hits=2)
    second.close()


def test_hits_wait_for_the_next_transaction_and_are_added_up_over_processes(books: Usage) -> None:
    books.add(KEY, STANDING, b"")
    other = Usage(books._database.path)
    for usage, when in ((books, 30.0), (other, 40.0), (other, 35.0)):
        usage.used(KEY, when)
    assert books.standing(KEY) == STANDING
    books.add(OTHER_KEY, STANDING, b"")
    assert other.standing(KEY) == Standing(100, 1.5, 30.0, hits=1)
    other.flush()
    other.flush()
    assert books.standing(KEY) == Standing(100, 1.5, 40.0, hits=3)
    other.close()


def test_bytes_are_the_sum_of_the_rows_whatever_was_added_and_removed(books: Usage) -> None:
    keys = add_many(books, 20)
    assert books.total_bytes() == sum(range(21))
    books.remove([keys[3], keys[7], OTHER_KEY])
    assert books.total_bytes() == sum(range(21)) - 4 - 8
    books.remove(keys)
    assert (books.total_bytes(), books.standings()) == (0, {})


def test_a_transaction_that_fails_keeps_nothing_and_loses_no_hit(books: Usage) -> None:
    books.add(KEY, STANDING, b"")
    books.used(KEY, 11.0)

    def fail() -> None:
        with books.writing():
            books.add(OTHER_KEY, STANDING, b"")
            books.remove([KEY])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert list(books.standings()) == [KEY]
    books.flush()
    assert books.standing(KEY) == Standing(100, 1.5, 11.0, hits=1)


def test_a_row_that_is_there_keeps_its_standing_and_only_its_bytes_are_corrected(
    books: Usage,
) -> None:
    books.add(KEY, STANDING, b"first")
    (before,) = books.noted_after(0)
    books.add(KEY, Standing(70, 9.0, 99.0, hits=5), b"second")
    assert books.standing(KEY) == Standing(70, 1.5, 10.0)
    assert books.noted_after(0) == [before]


def test_serials_ascend_and_a_block_that_comes_again_gets_a_new_one(books: Usage) -> None:
    keys = add_many(books, 4)
    rows = books.noted_after(0)
    assert [(row.key, row.note) for row in rows] == [
        (key, b"note %d" % n) for n, key in enumerate(keys)
    ]
    last = rows[-1].serial
    assert books.noted_after(last) == []
    books.remove(keys[1:])
    other = Usage(books._database.path)
    other.add(keys[2], STANDING, b"again")
    other.close()
    (row,) = books.noted_after(last)
    assert (row.key, row.note) == (keys[2], b"again")
    assert row.serial > last


def test_only_the_commits_of_others_change_their_number(books: Usage) -> None:
    before = books.others()
    books.add(KEY, STANDING, b"")
    assert books.others() == before
    other = Usage(books._database.path)
    other.add(OTHER_KEY, STANDING, b"")
    other.close()
    after = books.others()
    assert after != before
    assert books.others() == after


def test_a_note_that_was_changed_in_the_file_is_not_believed(books: Usage) -> None:
    books.add(KEY, STANDING, b"at token 100")
    books.add(OTHER_KEY, STANDING, b"at token 200")
    with closing(sqlite3.connect(books._database.path)) as connection:
        connection.execute("UPDATE blocks SET note = ? WHERE key = ?", (b"at token 900", KEY))
        connection.commit()
    assert books.note(KEY) is None
    assert [row.key for row in books.noted_after(0)] == [OTHER_KEY]


def unusable_files() -> dict[str, bytes]:
    dice = random.Random(5)
    return {
        "garbage": dice.randbytes(5000),
        "text": b"this is no database",
        "a beginning and garbage": b"SQLite format 3\x00" + dice.randbytes(4080),
    }


@pytest.mark.parametrize("kind", unusable_files())
def test_a_file_that_is_no_database_is_set_aside_with_a_warning(
    path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    content = unusable_files()[kind]
    path.parent.mkdir()
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        usage = Usage(path)
    assert "set aside and begun anew" in caplog.text
    assert path.with_name(path.name + ASIDE).read_bytes() == content
    usage.add(KEY, STANDING, b"")
    usage.close()
    assert list(Usage(path).standings()) == [KEY]


@pytest.mark.parametrize(
    "statement",
    [
        f"PRAGMA user_version = {SCHEMA_VERSION + 1}",
        "PRAGMA user_version = 0",
        "PRAGMA ignore_check_constraints = 1; UPDATE blocks SET bytes = 'many'",
        "PRAGMA writable_schema = 1; UPDATE sqlite_master SET rootpage = 3 WHERE name = 'blocks'",
        "ALTER TABLE blocks RENAME COLUMN hits TO finds",
        "PRAGMA writable_schema = 1; UPDATE sqlite_master SET sql = CAST(x'80FF' AS TEXT)",
    ],
    ids=["version", "program", "types", "structure", "columns", "text"],
)
def test_a_database_of_another_version_or_out_of_order_is_begun_anew(
    path: Path, statement: str, caplog: pytest.LogCaptureFixture
) -> None:
    usage = Usage(path)
    usage.add(KEY, STANDING, b"")
    usage.close()
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(statement + "; ")
        connection.commit()
    with caplog.at_level(logging.WARNING):
        usage = Usage(path)
    assert "set aside" in caplog.text
    assert usage.standings() == {}
    usage.add(OTHER_KEY, STANDING, b"")
    usage.close()


def test_every_flipped_byte_is_found_or_harmless(path: Path) -> None:
    usage = Usage(path)
    keys = add_many(usage, 12)
    usage.close()
    content, dice = path.read_bytes(), random.Random(1)
    for at in [*range(0, 120, 7), *(dice.randrange(len(content)) for _ in range(60))]:
        flipped = bytearray(content)
        flipped[at] ^= dice.randrange(1, 256)
        path.write_bytes(flipped)
        try:
            usage = Usage(path)
            standings, noted = usage.standings(), usage.noted_after(0)
            usage.total_bytes()
            usage.close()
        except StorageError:
            continue
        assert all(isinstance(each.bytes, int) for each in standings.values())
        assert all(row.note == b"note %d" % keys.index(row.key) for row in noted)


def test_damage_while_it_is_open_costs_one_call_and_the_rows(books: Usage) -> None:
    add_many(books, 500)
    books._database._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    size = books._database.path.stat().st_size
    with books._database.path.open("r+b") as file:
        file.seek(4096)
        file.write(bytes(size - 4096))
    books._database._connection.execute("PRAGMA cache_size = 0")
    books._database._connection.execute("PRAGMA shrink_memory")
    with pytest.raises(StorageError, match="malformed"):
        books.add(KEY, STANDING, b"")
    books.add(KEY, STANDING, b"")
    assert list(books.standings()) == [KEY]


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_a_file_that_is_taken_away_under_it_is_noticed(books: Usage, how: str) -> None:
    books.add(KEY, STANDING, b"")
    if how == "removed":
        for each in books._database.path.parent.iterdir():
            each.unlink()
    else:
        books._database.path.rename(books._database.path.with_name("elsewhere"))
        for end in ("-wal", "-shm"):
            books._database.path.with_name(books._database.path.name + end).unlink()
        Usage(books._database.path).close()
    books.add(OTHER_KEY, STANDING, b"")
    assert books.openings == 2
    fresh = Usage(books._database.path)
    assert list(fresh.standings()) == [OTHER_KEY]
    fresh.close()


def test_books_that_cannot_be_made_are_a_storage_error_of_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "usage.sqlite").mkdir()
    for path in (tmp_path / "file" / "usage.sqlite", tmp_path / "usage.sqlite"):
        with pytest.raises(StorageError, match="; ") as raised:
            Usage(path)
        assert "\n" not in str(raised.value)


def test_reconciling_makes_the_rows_the_files(books: Usage) -> None:
    disk = DiskStore(books._database.path.parent / "blocks", fsync=False)
    keys = [f"{n:064x}" for n in range(4)]
    sizes = [disk.put(key, *block(20 + n)) for n, key in enumerate(keys)]
    books.add(keys[0], Standing(sizes[0], 2.0, 1.0), b"right")
    books.add(keys[1], Standing(7, 2.0, 1.0), b"wrong bytes")
    books.add(KEY, Standing(50, 2.0, 1.0), b"no file")
    reconcile(books, disk, None)
    standings = books.standings()
    assert {key: standing.bytes for key, standing in standings.items()} == dict(
        zip(keys, sizes, strict=True)
    )
    assert [row.key for row in books.noted_after(0)] == keys[:2]
    assert (books.note(keys[1]), books.note(keys[2])) == (b"wrong bytes", None)


def test_a_file_without_a_row_waits_for_its_writer_and_then_goes(
    books: Usage, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = DiskStore(books._database.path.parent / "blocks", fsync=False)
    size = disk.put(KEY, *block(20))
    disk.put(OTHER_KEY, *block(30))
    reconcile(books, disk, None)
    assert list(disk.keys()) == [KEY, OTHER_KEY]
    books.add(KEY, Standing(size, 2.0, 1.0), b"its writer lives")
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3600)
    reconcile(books, disk, None)
    assert list(disk.keys()) == list(books.standings()) == [KEY]
    assert books.total_bytes() == size


def test_reconciling_evicts_what_a_smaller_budget_has_no_room_for(books: Usage) -> None:
    disk = DiskStore(books._database.path.parent / "blocks", fsync=False)
    keys = [f"{n:064x}" for n in range(5)]
    for n, key in enumerate(keys):
        books.add(key, Standing(disk.put(key, *block(20)), 1.0, float(n)), b"")
    books.pin(keys[0], True)
    reconcile(books, disk, 2 * disk.size_bytes(KEY) + 2 * disk.size_bytes(keys[0]))
    assert list(disk.keys()) == list(books.standings()) == [keys[0], keys[4]]


def test_a_process_that_keeps_the_books_for_long_is_named_as_the_cause(
    books: Usage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coinkv.store.opening.BUSY_TIMEOUT_SECONDS", 0.1)
    other = Usage(books._database.path)
    with books.writing(), pytest.raises(StorageError, match="another process keeps it busy"):
        other.add(KEY, STANDING, b"")
    other.add(KEY, STANDING, b"")
    other.close()
    assert list(books.standings()) == [KEY]
