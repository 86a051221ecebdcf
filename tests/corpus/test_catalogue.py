"""The catalogue keeps finished chunks and publishes generations, whatever happens around it."""

from __future__ import annotations

import dataclasses
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coinkv.corpus import sqlite
from coinkv.corpus.catalogue import Catalogue
from coinkv.corpus.schema import Content, DocumentRow, Placement
from coinkv.errors import (
    CoinKVError,
    IndexMismatchError,
    IndexNotFoundError,
    InputError,
    StorageError,
)


def hash_of(name: str) -> str:
    return sha256(name.encode()).hexdigest()


def content(name: str, nuggets: int = 2) -> Content:
    """A consistent chunk of 2 header tokens and 2 tokens for each nugget (at least one)."""
    rng = np.random.default_rng(len(name) + nuggets)
    spans = [(4 * i, 4 * i + 3, 2 + i, 3 + i, i % 2) for i in range(nuggets)]
    return Content(
        content_hash=hash_of(name),
        title=f"On {name}",
        text="abc " * max(nuggets, 1),
        header_tokens=2,
        token_ids=np.arange(2 + 2 * max(nuggets, 1), dtype=np.int32) * 70_001,
        nuggets=np.asarray(spans, dtype=np.int32).reshape(-1, 5),
        exact=nuggets - nuggets // 2,
        fuzzy=nuggets // 2,
        abandoned=1,
        covered_tokens=nuggets,
        extractor="sentences",
        embedder="minilm",
        chunk_vector=rng.standard_normal(8, dtype=np.float32),
        nugget_vectors=rng.standard_normal((nuggets, 8), dtype=np.float32),
    )


def document(key: str) -> DocumentRow:
    return DocumentRow(key, f"On {key}", f"text of {key}", hash_of(f"document {key}"))


def place(key: str, name: str, ordinal: int = 0) -> Placement:
    return Placement(key, ordinal, hash_of(name), 0, 8)


def publish(catalogue: Catalogue, names: str, generation: int) -> None:
    """Publish one document a letter, each made of the chunk of that name."""
    for name in names:
        catalogue.add(content(name))
    catalogue.publish(
        [document(name) for name in names], [place(name, name) for name in names], generation
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "catalogue.sqlite"


@pytest.fixture
def catalogue(path: Path) -> Iterator[Catalogue]:
    with Catalogue.create(path) as made:
        yield made


@pytest.mark.parametrize("nuggets", [0, 1, 5])
def test_a_chunk_comes_back_as_it_was_added(path: Path, nuggets: int):
    added = content("a", nuggets)
    with Catalogue.create(path) as first:
        first.add(added)
    with Catalogue.open(path) as again:
        back = again.content(added.content_hash)
    for field in dataclasses.fields(Content):
        before, after = getattr(added, field.name), getattr(back, field.name)
        if isinstance(before, np.ndarray):
            assert after.dtype == before.dtype, field.name
            assert after.shape == before.shape, field.name
            assert after.tobytes() == before.tobytes(), field.name
        else:
            assert after == before, field.name


def test_arrays_are_little_endian_in_the_database(catalogue: Catalogue, path: Path):
    catalogue.add(content("a"))
    raw = sqlite3.connect(path)
    (stored,) = raw.execute("SELECT token_ids FROM contents").fetchone()
    raw.close()
    assert stored[4:8] == (70_001).to_bytes(4, "little")


def test_a_chunk_is_known_only_by_the_extractor_and_embedder_that_finished_it(catalogue):
    catalogue.add(content("a"))
    hashes = [hash_of("a"), hash_of("b")]
    assert catalogue.known(hashes, extractor="sentences", embedder="minilm") == {hash_of("a")}
    assert catalogue.known(hashes, extractor="llm", embedder="minilm") == set()
    assert catalogue.known(hashes, extractor="sentences", embedder="other") == set()


def test_more_hashes_than_one_statement_takes_are_looked_up(catalogue: Catalogue):
    for name in "abc":
        catalogue.add(content(name))
    many = [*(hash_of(str(n)) for n in range(1300)), *map(hash_of, "abc")]
    assert len(catalogue.known(many, extractor="sentences", embedder="minilm")) == 3
    assert list(catalogue.contents(map(hash_of, "cab"))) == list(map(hash_of, "cab"))


def test_adding_a_chunk_again_replaces_it_and_leaves_it_published(catalogue: Catalogue):
    publish(catalogue, "ab", 1)
    catalogue.add(dataclasses.replace(content("a"), extractor="llm"))
    assert catalogue.content(hash_of("a")).extractor == "llm"
    publish(catalogue, "b", 2)  # generation 1 still refers to a
    assert hash_of("a") in catalogue.hashes()


@pytest.mark.parametrize(
    "wrong",
    [
        {"nuggets": np.zeros((2, 4), np.int32)},
        {"nuggets": np.asarray([[0, 3, 2, 3, 0], [0, 9, 3, 4, 0]], np.int32)},
        {"nuggets": np.asarray([[0, 3, 2, 3, 0], [4, 7, 3, 7, 0]], np.int32)},
        {"nuggets": np.asarray([[0, 3, 2, 3, 0], [4, 4, 3, 4, 0]], np.int32)},
        {"nuggets": np.asarray([[0, 3, 2, 3, 0], [-1, 4, 3, 4, 0]], np.int32)},
        {"nugget_vectors": np.zeros((1, 8), np.float32)},
        {"nugget_vectors": np.zeros((2, 7), np.float32)},
        {"chunk_vector": np.zeros((1, 8), np.float32)},
    ],
)
def test_a_chunk_whose_parts_contradict_each_other_is_refused(catalogue: Catalogue, wrong: dict):
    with pytest.raises(InputError):
        catalogue.add(dataclasses.replace(content("a"), **wrong))
    assert catalogue.hashes() == []


def test_nothing_is_published_in_a_new_catalogue(catalogue: Catalogue):
    catalogue.add(content("a"))
    assert catalogue.generation == 0
    assert catalogue.documents() == []
    assert catalogue.stats().chunks == 0
    assert catalogue.stats().coverage == 0.0
    with pytest.raises(IndexNotFoundError):
        catalogue.embedder()


def test_publishing_replaces_documents_and_placements(catalogue: Catalogue):
    publish(catalogue, "ab", 1)
    publish(catalogue, "bc", 2)
    assert catalogue.generation == 2
    assert catalogue.documents() == [document("b"), document("c")]
    assert catalogue.placements() == [place("b", "b"), place("c", "c")]
    assert catalogue.document("c") == document("c")
    assert catalogue.embedder() == "minilm"
    with pytest.raises(InputError, match="no document 'a'"):
        catalogue.document("a")


def test_a_chunk_goes_when_two_generations_do_not_refer_to_it(catalogue: Catalogue):
    publish(catalogue, "ab", 1)
    publish(catalogue, "b", 2)
    assert catalogue.content(hash_of("a")).title == "On a"
    publish(catalogue, "b", 3)
    assert catalogue.hashes() == [hash_of("b")]
    with pytest.raises(IndexMismatchError, match="open the index again"):
        catalogue.content(hash_of("a"))


def test_publishing_purges_finished_chunks_that_no_document_has(catalogue: Catalogue):
    catalogue.add(content("left over from an interrupted build"))
    publish(catalogue, "a", 1)
    assert catalogue.hashes() == [hash_of("a")]


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sets(st.sampled_from("abcd"), min_size=1), min_size=1, max_size=5))
def test_the_chunks_kept_are_those_of_the_last_two_generations(tmp_path, history):
    path = tmp_path / "law.sqlite"
    path.unlink(missing_ok=True)
    with Catalogue.create(path) as catalogue:
        for generation, names in enumerate(history, start=1):
            publish(catalogue, "".join(sorted(names)), generation)
        kept = set().union(*history[-2:])
        assert catalogue.hashes() == sorted(map(hash_of, kept))
        assert [row.key for row in catalogue.documents()] == sorted(history[-1])


def test_a_chunk_of_several_documents_is_kept_once_and_placed_in_each(catalogue: Catalogue):
    catalogue.add(content("same"))
    places = [place("y", "same"), place("x", "same", 1), place("x", "same", 0)]
    catalogue.publish([document("x"), document("y")], places, 1)
    assert catalogue.placements_of(hash_of("same")) == [places[2], places[1], places[0]]
    assert catalogue.stats().chunks == 1


def test_a_chunk_of_the_generation_before_is_still_placed_where_it_stood(catalogue: Catalogue):
    publish(catalogue, "ab", 1)
    publish(catalogue, "b", 2)
    assert catalogue.placements_of(hash_of("a")) == [place("a", "a")]
    publish(catalogue, "b", 3)
    with pytest.raises(IndexMismatchError):
        catalogue.placements_of(hash_of("a"))


def test_a_chunk_that_stands_nowhere_has_no_placements(catalogue: Catalogue):
    catalogue.add(content("a"))
    with pytest.raises(IndexMismatchError):
        catalogue.placements_of(hash_of("a"))


@pytest.mark.parametrize(
    ("documents", "placements", "generation"),
    [
        ("a", [place("a", "never added")], 2),
        ("a", [place("unknown document", "a")], 2),
        ("a", [place("a", "a")], 1),
        ("aa", [place("a", "a")], 2),
    ],
)
def test_a_refused_publication_changes_nothing(catalogue, documents, placements, generation):
    publish(catalogue, "ab", 1)
    with pytest.raises(CoinKVError):
        catalogue.publish([document(key) for key in documents], placements, generation)
    assert catalogue.generation == 1
    assert catalogue.placements() == [place("a", "a"), place("b", "b")]


def test_stats_count_distinct_published_chunks_only(catalogue: Catalogue):
    publish(catalogue, "ab", 1)
    catalogue.add(content("not published", 5))
    stats = catalogue.stats()
    assert (stats.documents, stats.chunks, stats.tokens) == (2, 2, 12)
    assert (stats.exact, stats.fuzzy, stats.abandoned) == (2, 2, 2)
    assert stats.coverage == pytest.approx(4 / 8)


def test_facts_are_kept_and_the_generation_is_not_one_to_set(path: Path):
    with Catalogue.create(path) as first:
        assert first.state("settings") is None
        first.set_state("settings", "one")
        first.set_state("settings", "two")
        with pytest.raises(InputError):
            first.set_state("generation", "7")
    with Catalogue.open(path) as again:
        assert again.state("settings") == "two"
        assert again.generation == 0


def test_a_text_that_is_not_unicode_is_refused_in_one_line(catalogue: Catalogue):
    with pytest.raises(InputError, match="Unicode"):
        catalogue.add(dataclasses.replace(content("a"), title="\udcff"))
    assert catalogue.hashes() == []


def test_a_missing_catalogue_is_not_found_and_not_made(path: Path):
    with pytest.raises(IndexNotFoundError, match="no catalogue"):
        Catalogue.open(path)
    assert not path.exists()


def test_creating_over_a_file_is_refused(path: Path):
    path.write_text("mine")
    with pytest.raises(InputError, match="a file already"):
        Catalogue.create(path)
    assert path.read_text() == "mine"


def test_creating_in_a_folder_that_is_not_there_says_so(tmp_path: Path):
    with pytest.raises(StorageError, match="unable to open"):
        Catalogue.create(tmp_path / "no folder" / "catalogue.sqlite")


def test_a_file_of_another_kind_is_not_a_catalogue(path: Path):
    path.write_bytes(b"This is a text file, not a database. " * 200)
    with pytest.raises(IndexNotFoundError, match="not a database"):
        Catalogue.open(path)


def test_a_database_of_something_else_is_not_a_catalogue(path: Path):
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE contents (x)")
    other.commit()
    other.close()
    with pytest.raises(IndexNotFoundError, match="not a catalogue"):
        Catalogue.open(path)


def test_a_catalogue_whose_creation_was_cut_off_is_made_whole(path: Path):
    path.touch()
    with Catalogue.open(path) as catalogue:
        catalogue.add(content("a"))
        assert catalogue.hashes() == [hash_of("a")]


@pytest.mark.parametrize("seed", range(4))
def test_a_damaged_database_never_raises_anything_but_our_errors(path: Path, seed: int):
    with Catalogue.create(path) as catalogue:
        publish(catalogue, "abcdefgh", 1)
    whole = path.read_bytes()
    rng = np.random.default_rng(seed)
    data = bytearray(whole)
    for at in rng.integers(100, len(whole) - 64, 60):
        data[at : at + 64] = rng.bytes(64)
    path.write_bytes(data)
    reads = [
        lambda c: c.known([hash_of("a")], extractor="sentences", embedder="minilm"),
        lambda c: c.contents(map(hash_of, "abcdefgh")),
        Catalogue.documents,
        Catalogue.placements,
        Catalogue.hashes,
        Catalogue.stats,
        Catalogue.embedder,
        lambda c: c.placements_of(hash_of("a")),
        lambda c: c.document("a"),
        lambda c: c.state("settings"),
        lambda c: c.generation,
        Catalogue.problems,
    ]
    told = []
    for read in reads:
        try:
            with Catalogue.open(path) as catalogue:
                read(catalogue)
        except CoinKVError as error:
            told.append(str(error))
    assert told
    assert not any("\n" in line for line in told)


def test_a_chunk_cut_short_inside_the_database_is_reported(catalogue: Catalogue, path: Path):
    publish(catalogue, "ab", 1)
    assert catalogue.problems() == []
    raw = sqlite3.connect(path)
    raw.execute(
        "UPDATE contents SET nugget_vectors = substr(nugget_vectors, 1, 33) WHERE title = 'On a'"
    )
    raw.execute("DELETE FROM contents WHERE title = 'On b'")
    raw.commit()
    raw.close()
    with pytest.raises(StorageError, match="damaged"):
        catalogue.content(hash_of("a"))
    missing, damaged = catalogue.problems()
    assert "'b' is missing" in missing
    assert hash_of("a")[:12] in damaged


def test_a_reader_reads_the_old_generation_while_a_writer_writes(catalogue, path: Path):
    publish(catalogue, "a", 1)
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("DELETE FROM documents")
    try:
        assert catalogue.documents() == [document("a")]
    finally:
        writer.execute("ROLLBACK")
        writer.close()


def test_a_writer_gives_up_on_a_lock_that_stays(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_SECONDS", 0.05)
    with Catalogue.create(path) as catalogue:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StorageError, match="another process"):
            catalogue.add(content("a"))
        other.execute("ROLLBACK")
        other.close()
        catalogue.add(content("a"))
        assert catalogue.hashes() == [hash_of("a")]


def test_a_full_disk_is_one_line_and_what_was_there_stays(catalogue: Catalogue, path: Path):
    publish(catalogue, "a", 1)
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    big = dataclasses.replace(content("b"), text="x" * 4_000_000)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, unlimited[1]))
    try:
        with pytest.raises(StorageError):
            catalogue.add(big)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    assert catalogue.hashes() == [hash_of("a")]
    catalogue.add(big)
    assert len(catalogue.content(hash_of("b")).text) == 4_000_000


def test_threads_add_and_read_together(catalogue: Catalogue):
    publish(catalogue, "a", 1)
    stop = threading.Event()

    def read() -> int:
        reads = 0
        while reads == 0 or not stop.is_set():
            assert catalogue.content(hash_of("a")).title == "On a"
            assert catalogue.generation == 1
            reads += 1
        return reads

    with ThreadPoolExecutor(2) as readers, ThreadPoolExecutor(4) as writers:
        reading = [readers.submit(read) for _ in range(2)]
        list(writers.map(lambda n: catalogue.add(content(f"chunk {n}")), range(40)))
        stop.set()
        assert all(reader.result() > 0 for reader in reading)
    assert len(catalogue.hashes()) == 41


def test_publishing_succeeds_beside_another_writer(catalogue: Catalogue):
    catalogue.add(content("a"))
    stop = threading.Event()

    def write() -> int:
        writes = 0
        while not stop.is_set():
            catalogue.set_state("progress", str(writes))
            writes += 1
        return writes

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        try:
            for generation in range(1, 31):
                catalogue.publish([document("a")], [place("a", "a")], generation)
        finally:
            stop.set()
        assert writing.result() > 0
    assert catalogue.generation == 30


_ADDS_UNTIL_KILLED = """
import sys
sys.path.insert(0, sys.argv[2])
from test_catalogue import Catalogue, content
with Catalogue.open(sys.argv[1]) as catalogue:
    for n in range(100_000):
        catalogue.add(content(f"chunk {n}"))
        print(n, flush=True)
"""


def test_a_killed_build_loses_no_finished_chunk(path: Path):
    Catalogue.create(path).close()
    builder = subprocess.Popen(
        [sys.executable, "-c", _ADDS_UNTIL_KILLED, str(path), str(Path(__file__).parent)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert builder.stdout is not None
    finished = [int(builder.stdout.readline()) for _ in range(5)][-1]
    os.kill(builder.pid, signal.SIGKILL)
    finished = int(([str(finished), *builder.stdout.read().split()])[-1])
    builder.wait()
    with Catalogue.open(path) as catalogue:
        hashes = [hash_of(f"chunk {n}") for n in range(finished + 1)]
        known = catalogue.known(hashes, extractor="sentences", embedder="minilm")
        assert known == set(hashes)
        assert catalogue.problems() == []
