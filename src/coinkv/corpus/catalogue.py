"""The catalogue: the truth of an index, from which all else in its folder can be made again."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import (
    URL,
    Column,
    Connection,
    Engine,
    Integer,
    LargeBinary,
    MetaData,
    RowMapping,
    Select,
    String,
    Table,
    Text,
    create_engine,
    delete,
    event,
    func,
    insert,
    inspect,
    select,
    update,
)
from sqlalchemy.exc import DBAPIError

from coinkv.errors import (
    CoinKVError,
    IndexMismatchError,
    IndexNotFoundError,
    InputError,
    StorageError,
)

BUSY_TIMEOUT_SECONDS = 30.0
"""How long a writer waits for another writer."""
_BATCH = 500
_GENERATION = "generation"
_NEVER = 0
_REBUILD = "restore it from a copy, or build the index again into a new folder"

_metadata = MetaData()
_documents = Table(
    "documents",
    _metadata,
    Column("key", Text, primary_key=True),
    Column("title", Text, nullable=False),
    Column("text", Text, nullable=False),
    Column("content_hash", String(64), nullable=False),
)
_contents = Table(
    "contents",
    _metadata,
    Column("content_hash", String(64), primary_key=True),
    Column("title", Text, nullable=False),
    Column("text", Text, nullable=False),
    Column("header_tokens", Integer, nullable=False),
    Column("token_ids", LargeBinary, nullable=False),
    Column("nuggets", LargeBinary, nullable=False),
    Column("exact", Integer, nullable=False),
    Column("fuzzy", Integer, nullable=False),
    Column("abandoned", Integer, nullable=False),
    Column("covered_tokens", Integer, nullable=False),
    Column("tokens", Integer, nullable=False),
    Column("extractor", Text, nullable=False),
    Column("embedder", Text, nullable=False),
    Column("chunk_vector", LargeBinary, nullable=False),
    Column("nugget_vectors", LargeBinary, nullable=False),
    Column("last_generation", Integer, nullable=False),
)
_placements = Table(
    "placements",
    _metadata,
    Column("document_key", Text, primary_key=True),
    Column("ordinal", Integer, primary_key=True),
    Column("content_hash", String(64), nullable=False, index=True),
    Column("start", Integer, nullable=False),
    Column("end", Integer, nullable=False),
)
_state = Table(
    "state",
    _metadata,
    Column("name", Text, primary_key=True),
    Column("value", Text, nullable=False),
)
_ARRAYS = {"token_ids": "<i4", "nuggets": "<i4", "chunk_vector": "<f4", "nugget_vectors": "<f4"}
_NOT_IN_CONTENT = ("tokens", "last_generation")
_WRITES = "coinkv_writes"
_PLACE_ORDER = (_placements.c.document_key, _placements.c.ordinal)


@dataclass(frozen=True)
class DocumentRow:
    """A published document; `content_hash` is 64 hex digits over what its chunks depend on."""

    key: str
    title: str
    text: str
    content_hash: str


@dataclass(frozen=True)
class Placement:
    """Where a chunk stands: characters `[start, end)` of a document, as its `ordinal`-th chunk."""

    document_key: str
    ordinal: int
    content_hash: str
    start: int
    end: int


@dataclass(frozen=True, eq=False)
class Content:
    """A finished chunk: text, tokens, nuggets and vectors, wherever it stands.

    Attributes:
        content_hash: 64 hex digits over all that the chunk's KV depends on.
        title: title of the document, without the header's line break.
        text: the chunk's text, without the title header.
        header_tokens: tokens of the title header, at the front of `token_ids`.
        token_ids: `[tokens]` int32, title header included.
        nuggets: `[n, 5]` int32: character start and end in `text`, token start and end in
            `token_ids`, kind (0 exact, 1 fuzzy).
        exact: candidates matched verbatim (paper arXiv 2608.07458, section 2.2).
        fuzzy: candidates matched by similarity.
        abandoned: candidates that matched nothing.
        covered_tokens: tokens that lie in at least one nugget.
        extractor: identity of the extractor.
        embedder: identity of the embedder.
        chunk_vector: `[dimension]` float32.
        nugget_vectors: `[n, dimension]` float32, a row a nugget.
    """

    content_hash: str
    title: str
    text: str
    header_tokens: int
    token_ids: NDArray[np.int32]
    nuggets: NDArray[np.int32]
    exact: int
    fuzzy: int
    abandoned: int
    covered_tokens: int
    extractor: str
    embedder: str
    chunk_vector: NDArray[np.float32]
    nugget_vectors: NDArray[np.float32]


@dataclass(frozen=True)
class CatalogueStats:
    """Totals over the published generation.

    Attributes:
        documents: documents.
        chunks: distinct chunks.
        tokens: tokens of the distinct chunks, title headers included.
        exact: nuggets matched verbatim.
        fuzzy: nuggets matched by similarity.
        abandoned: candidates that matched nothing.
        coverage: share of the chunks' tokens, title headers left out, that lie in a nugget.
    """

    documents: int
    chunks: int
    tokens: int
    exact: int
    fuzzy: int
    abandoned: int
    coverage: float


class Catalogue:
    """Documents, chunks, nuggets and vectors of an index in one database.

    A chunk is kept when it is finished; `publish` then makes a whole generation visible in one
    transaction. Chunks of the generation before stay, for readers that have its vectors open.
    Safe to use from any number of threads and processes; readers do not wait for a writer.

    Any method may raise StorageError: the database is damaged, locked for too long, or cannot be
    written (no space, no permission).
    """

    def __init__(self, engine: Engine, where: Path) -> None:
        self._engine, self._where = engine, where

    @classmethod
    def create(cls, path: str | Path) -> Catalogue:
        """Make an empty catalogue.

        Raises:
            InputError: there is a file at the path.
            StorageError: it cannot be written.
        """
        path = Path(path)
        if path.exists():
            raise InputError("there is a file already", where=path, hint="open it instead")
        return cls._opened(path)

    @classmethod
    def open(cls, path: str | Path) -> Catalogue:
        """Open a catalogue; one whose creation was cut off (an empty database) is made whole.

        Raises:
            IndexNotFoundError: no such file, or it is no catalogue, or a damaged one.
            StorageError: it cannot be read or written.
        """
        path = Path(path)
        if not path.is_file():
            raise IndexNotFoundError("there is no catalogue", where=path)
        return cls._opened(path)

    @classmethod
    def _opened(cls, path: Path) -> Catalogue:
        catalogue = cls(_sqlite_engine(path), path)
        try:
            catalogue._require_tables()
        except CoinKVError:
            catalogue.close()
            raise
        return catalogue

    def _require_tables(self) -> None:
        with self._translated(damaged=IndexNotFoundError):
            if not inspect(self._engine).get_table_names():
                with self._transaction() as connection:
                    _metadata.create_all(connection)
            tables = set(inspect(self._engine).get_table_names())
            if not set(_metadata.tables) <= tables:
                raise IndexNotFoundError("this database is not a catalogue", where=self._where)
            _ = self.generation

    def close(self) -> None:
        """Close all connections; the catalogue must not be used afterwards."""
        self._engine.dispose()

    def __enter__(self) -> Catalogue:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def known(self, hashes: Iterable[str], *, extractor: str, embedder: str) -> set[str]:
        """Those of the hashes whose contents are finished with this extractor and embedder."""
        table, wanted = _contents, list(hashes)
        same = (table.c.extractor == extractor) & (table.c.embedder == embedder)
        with self._reading() as connection:
            return {
                content_hash
                for batch in _batches(wanted)
                for content_hash in connection.scalars(
                    select(table.c.content_hash).where(same & table.c.content_hash.in_(batch))
                )
            }

    def add(self, content: Content) -> None:
        """Keep a finished chunk, in a transaction of its own; replaces an earlier one.

        On the disk when this returns. Published or not, a chunk stays where it is published.

        Raises:
            InputError: shapes, spans or counts of the content contradict each other.
        """
        row = _stored(content, self._where)
        with self._writing() as connection:
            same = _contents.c.content_hash == content.content_hash
            if not connection.execute(update(_contents).where(same).values(row)).rowcount:
                connection.execute(insert(_contents).values(row | {"last_generation": _NEVER}))

    def content(self, content_hash: str) -> Content:
        """A finished chunk.

        Raises:
            IndexMismatchError: the catalogue does not hold it (any more).
        """
        return self.contents([content_hash])[content_hash]

    def contents(self, hashes: Iterable[str]) -> dict[str, Content]:
        """Finished chunks by hash, in the order given.

        Raises:
            IndexMismatchError: the catalogue does not hold one of them (any more).
        """
        wanted = list(dict.fromkeys(hashes))
        rows: dict[str, RowMapping] = {}
        with self._reading() as connection:
            for batch in _batches(wanted):
                query = select(_contents).where(_contents.c.content_hash.in_(batch))
                rows |= {row["content_hash"]: row for row in connection.execute(query).mappings()}
        for content_hash in wanted:
            if content_hash not in rows:
                self._gone(content_hash)
        return {content_hash: self._restored(rows[content_hash]) for content_hash in wanted}

    def hashes(self) -> list[str]:
        """Hashes of all finished chunks, published or not, sorted."""
        query = select(_contents.c.content_hash).order_by(_contents.c.content_hash)
        with self._reading() as connection:
            hashes = list(connection.scalars(query))
        if None in hashes:
            raise self._damage("a chunk has no hash")
        return hashes

    def publish(
        self, documents: Sequence[DocumentRow], placements: Sequence[Placement], generation: int
    ) -> None:
        """Make documents and their chunks the published generation, in one transaction.

        Finished chunks that neither it nor the generation published before refers to are purged.

        Raises:
            InputError: the generation is not a later one, or a placement refers to a document or
                a chunk that is not there; nothing is changed.
        """
        keys = {document.key for document in documents}
        with self._writing() as connection:
            before = self._generation(connection)
            if generation <= before:
                raise InputError(
                    f"generation {generation} does not follow generation {before}",
                    where=self._where,
                    hint="let only one build run at a time",
                )
            finished = set(connection.scalars(select(_contents.c.content_hash)))
            for place in placements:
                if place.content_hash not in finished or place.document_key not in keys:
                    raise InputError(
                        f"chunk {place.ordinal} of document {place.document_key!r} was not added",
                        where=self._where,
                    )
            for table, rows in ((_documents, documents), (_placements, placements)):
                connection.execute(delete(table))
                if rows:
                    connection.execute(insert(table), [vars(row) for row in rows])
            last, placed = _contents.c.last_generation, select(_placements.c.content_hash)
            here = _contents.c.content_hash.in_(placed)
            connection.execute(update(_contents).where(here).values(last_generation=generation))
            connection.execute(delete(_contents).where((last == _NEVER) | (last < before)))
            self._set(connection, _GENERATION, str(generation))

    @property
    def generation(self) -> int:
        """The published generation; 0 when none is."""
        with self._reading() as connection:
            return self._generation(connection)

    def documents(self) -> list[DocumentRow]:
        """The published documents, by key."""
        return [DocumentRow(**row) for row in self._rows(select(_documents), _documents.c.key)]

    def document(self, key: str) -> DocumentRow:
        """A published document.

        Raises:
            InputError: there is no document with this key.
        """
        for row in self._rows(select(_documents).where(_documents.c.key == key)):
            return DocumentRow(**row)
        raise InputError(f"the index has no document {key!r}", where=self._where)

    def placements(self) -> list[Placement]:
        """Where chunks stand in the published documents, by document and ordinal."""
        return [Placement(**row) for row in self._rows(select(_placements), *_PLACE_ORDER)]

    def placements_of(self, content_hash: str) -> list[Placement]:
        """Where a chunk stands in the published documents, by document and ordinal.

        Raises:
            IndexMismatchError: it stands in none (any more).
        """
        same = _placements.c.content_hash == content_hash
        rows = self._rows(select(_placements).where(same), *_PLACE_ORDER)
        if not rows:
            self._gone(content_hash)
        return [Placement(**row) for row in rows]

    def embedder(self) -> str:
        """Identity of the embedder whose vectors are published.

        Raises:
            IndexNotFoundError: nothing is published.
        """
        columns = _contents.c
        with self._reading() as connection:
            generation = self._generation(connection)
            published = (columns.last_generation == generation) & (generation != _NEVER)
            identity = connection.scalar(select(columns.embedder).where(published).limit(1))
        if identity is None:
            raise IndexNotFoundError("no chunk is published", where=self._where)
        return str(identity)

    def stats(self) -> CatalogueStats:
        """Totals over the published generation."""
        summed = ("tokens", "header_tokens", "covered_tokens", "exact", "fuzzy", "abandoned")
        totals = [func.count(), *(func.sum(_contents.c[name]) for name in summed)]
        placed = _contents.c.content_hash.in_(select(_placements.c.content_hash))
        with self._reading() as connection:
            documents = connection.scalar(select(func.count()).select_from(_documents))
            row = connection.execute(select(*totals).where(placed)).one()
        chunks, tokens, header, covered, exact, fuzzy, abandoned = (int(n or 0) for n in row)
        return CatalogueStats(
            documents=int(documents or 0),
            chunks=chunks,
            tokens=tokens,
            exact=exact,
            fuzzy=fuzzy,
            abandoned=abandoned,
            coverage=covered / (tokens - header) if tokens > header else 0.0,
        )

    def state(self, name: str) -> str | None:
        """A kept fact about the index, None when it was never set."""
        with self._reading() as connection:
            return self._get(connection, name)

    def set_state(self, name: str, value: str) -> None:
        """Keep a fact about the index, in a transaction of its own.

        Raises:
            InputError: the name is one that the catalogue itself keeps.
        """
        if name == _GENERATION:
            raise InputError("the generation is set by publishing", where=self._where)
        with self._writing() as connection:
            self._set(connection, name, value)

    def problems(self) -> list[str]:
        """What is wrong with the database, a line each; reads every row, changes nothing."""
        found: list[str] = []
        try:
            with self._reading() as connection:
                found += _structure_problems(connection)
            hashes = self.hashes()
            finished = set(hashes)
            for place in self.placements():
                if place.content_hash not in finished:
                    found.append(f"chunk {place.ordinal} of {place.document_key!r} is missing")
        except CoinKVError as error:
            return [*found, str(error)]
        for content_hash in hashes:
            try:
                self.content(content_hash)
            except CoinKVError as error:
                found.append(str(error))
        return found

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        """One consistent view of the database."""
        with self._translated(), self._engine.connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        """One transaction: all of it or nothing."""
        with self._translated(), self._transaction() as connection:
            yield connection

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        with self._engine.connect() as connection:
            connection = connection.execution_options(**{_WRITES: True})
            with connection.begin():
                yield connection

    @contextmanager
    def _translated(self, damaged: type[CoinKVError] = StorageError) -> Iterator[None]:
        """Turn what the database raises into one line for the user."""
        try:
            yield
        except UnicodeError as error:
            raise InputError(
                "a text holds characters that are not valid Unicode", where=self._where
            ) from error
        except (DBAPIError, sqlite3.Error) as error:
            raise _translation(error, self._where, damaged) from error

    def _rows(self, query: Select[Any], *order: Column[Any]) -> list[dict[str, Any]]:
        with self._reading() as connection:
            return [dict(row) for row in connection.execute(query.order_by(*order)).mappings()]

    def _generation(self, connection: Connection) -> int:
        value = self._get(connection, _GENERATION)
        try:
            return int(value or _NEVER)
        except ValueError as error:
            raise self._damage(f"its generation is {value!r}") from error

    @staticmethod
    def _get(connection: Connection, name: str) -> str | None:
        return connection.scalar(select(_state.c.value).where(_state.c.name == name))

    @staticmethod
    def _set(connection: Connection, name: str, value: str) -> None:
        connection.execute(delete(_state).where(_state.c.name == name))
        connection.execute(insert(_state).values(name=name, value=value))

    def _restored(self, row: RowMapping) -> Content:
        columns = {name: value for name, value in row.items() if name not in _NOT_IN_CONTENT}
        try:
            for name, dtype in _ARRAYS.items():
                columns[name] = np.frombuffer(columns[name], dtype)
            columns["nuggets"] = columns["nuggets"].reshape(-1, 5)
            dimension = len(columns["chunk_vector"])
            columns["nugget_vectors"] = columns["nugget_vectors"].reshape(-1, dimension)
            content = Content(**columns)
            _require_consistent(content, self._where)
        except (ValueError, TypeError, InputError) as error:
            raise self._damage(f"chunk {str(row['content_hash'])[:12]}: {error}") from error
        return content

    def _damage(self, what: str) -> StorageError:
        return StorageError(f"the catalogue is damaged ({what})", where=self._where, hint=_REBUILD)

    def _gone(self, content_hash: str) -> NoReturn:
        raise IndexMismatchError(
            f"the index does not hold chunk {content_hash[:12]} (any more)",
            where=self._where,
            hint="open the index again: it was built anew meanwhile",
        )


def _batches(hashes: Sequence[str]) -> Iterator[Sequence[str]]:
    """Parts small enough for the parameters of one statement."""
    for start in range(0, len(hashes), _BATCH):
        yield hashes[start : start + _BATCH]


def _stored(content: Content, where: Path) -> dict[str, Any]:
    """The columns of a content, arrays in little endian bytes."""
    _require_consistent(content, where)
    row = vars(content) | {"tokens": len(content.token_ids)}
    return row | {name: row[name].astype(dtype).tobytes() for name, dtype in _ARRAYS.items()}


def _require_consistent(content: Content, where: Path) -> None:
    """Refuse a content whose arrays contradict each other."""
    spans, count = content.nuggets, len(content.nuggets)
    tokens, characters = len(content.token_ids), len(content.text)
    if spans.shape != (count, 5) or content.chunk_vector.ndim != 1:
        wrong = "nuggets must be [n, 5] and the chunk vector [dimension]"
    elif content.nugget_vectors.shape != (count, len(content.chunk_vector)):
        wrong = f"{count} nuggets need as many vectors of the chunk vector's dimension"
    elif count and not (
        (spans[:, (0, 2)] >= 0).all()
        and (spans[:, (0, 2)] < spans[:, (1, 3)]).all()
        and (spans[:, (1, 3)] <= (characters, tokens)).all()
    ):
        wrong = "a nugget lies outside the chunk"
    else:
        return
    raise InputError(wrong, where=where)


def _translation(error: Exception, where: Path, damaged: type[CoinKVError]) -> CoinKVError:
    """The error to show for one the database raised."""
    cause = getattr(error, "orig", None) or error
    said = str(cause).splitlines()[0] if str(cause) else type(cause).__name__
    primary = (getattr(cause, "sqlite_errorcode", None) or 0) & 0xFF
    if primary in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_ERROR):
        return damaged(f"the catalogue is damaged ({said})", where=where, hint=_REBUILD)
    hint = _HINTS.get(primary, "check that disk and the permissions, then run the command again")
    return StorageError(f"the catalogue cannot be used ({said})", where=where, hint=hint)


# What follows is all that is SQLite's own; another database brings its own engine.


_HINTS = {
    sqlite3.SQLITE_FULL: "free space on that disk, then run the command again",
    sqlite3.SQLITE_BUSY: "another process writes to it: wait for it, then run the command again",
}


def _sqlite_engine(path: Path) -> Engine:
    """Connections to a database file: readers beside one writer, commits on the disk."""
    engine = create_engine(URL.create("sqlite", database=str(path)), max_overflow=-1)

    @event.listens_for(engine, "connect")
    def _configure(connection: Any, record: Any) -> None:
        connection.isolation_level = None  # transactions begin below, not where the driver guesses
        connection.execute(f"PRAGMA busy_timeout = {int(BUSY_TIMEOUT_SECONDS * 1000)}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")  # a chunk costs far more than a sync

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        writes = connection.get_execution_options().get(_WRITES, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _structure_problems(connection: Connection) -> list[str]:
    """What the database itself finds wrong in its file."""
    lines = connection.exec_driver_sql("PRAGMA integrity_check").scalars().all()
    return [f"catalogue: {line}" for line in lines if line != "ok"]
