"""The catalogue: the truth of an index, from which all else in its folder can be made again."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import numpy as np
from sqlalchemy import (
    Column,
    Connection,
    Engine,
    RowMapping,
    Select,
    delete,
    func,
    insert,
    inspect,
    select,
    update,
)
from sqlalchemy.exc import DBAPIError

from coinkv.corpus.schema import (
    ARRAYS,
    CONTENTS,
    DOCUMENTS,
    METADATA,
    NOT_IN_CONTENT,
    PLACE_ORDER,
    PLACEMENTS,
    PLACEMENTS_BEFORE,
    STATE,
    CatalogueStats,
    Content,
    DocumentRow,
    Placement,
)
from coinkv.corpus.sqlite import REBUILD, WRITES, sqlite_engine, structure_problems, translation
from coinkv.errors import (
    CoinKVError,
    IndexMismatchError,
    IndexNotFoundError,
    InputError,
    StorageError,
)

_BATCH = 500
_GENERATION = "generation"
_NEVER = 0


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
        catalogue = cls(sqlite_engine(path), path)
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
                    METADATA.create_all(connection)
            tables = set(inspect(self._engine).get_table_names())
            if not set(METADATA.tables) <= tables:
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
        table, wanted = CONTENTS, list(hashes)
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
            same = CONTENTS.c.content_hash == content.content_hash
            if not connection.execute(update(CONTENTS).where(same).values(row)).rowcount:
                connection.execute(insert(CONTENTS).values(row | {"last_generation": _NEVER}))

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
                query = select(CONTENTS).where(CONTENTS.c.content_hash.in_(batch))
                rows |= {row["content_hash"]: row for row in connection.execute(query).mappings()}
        for content_hash in wanted:
            if content_hash not in rows:
                self._gone(content_hash)
        return {content_hash: self._restored(rows[content_hash]) for content_hash in wanted}

    def hashes(self) -> list[str]:
        """Hashes of all finished chunks, published or not, sorted."""
        query = select(CONTENTS.c.content_hash).order_by(CONTENTS.c.content_hash)
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
            finished = set(connection.scalars(select(CONTENTS.c.content_hash)))
            for place in placements:
                if place.content_hash not in finished or place.document_key not in keys:
                    raise InputError(
                        f"chunk {place.ordinal} of document {place.document_key!r} was not added",
                        where=self._where,
                    )
            connection.execute(delete(PLACEMENTS_BEFORE))
            columns = [column.name for column in PLACEMENTS.c]
            connection.execute(insert(PLACEMENTS_BEFORE).from_select(columns, select(PLACEMENTS)))
            for table, rows in ((DOCUMENTS, documents), (PLACEMENTS, placements)):
                connection.execute(delete(table))
                if rows:
                    connection.execute(insert(table), [vars(row) for row in rows])
            last, placed = CONTENTS.c.last_generation, select(PLACEMENTS.c.content_hash)
            here = CONTENTS.c.content_hash.in_(placed)
            connection.execute(update(CONTENTS).where(here).values(last_generation=generation))
            connection.execute(delete(CONTENTS).where((last == _NEVER) | (last < before)))
            self._set(connection, _GENERATION, str(generation))

    @property
    def generation(self) -> int:
        """The published generation; 0 when none is."""
        with self._reading() as connection:
            return self._generation(connection)

    def documents(self) -> list[DocumentRow]:
        """The published documents, by key."""
        return [DocumentRow(**row) for row in self._rows(select(DOCUMENTS), DOCUMENTS.c.key)]

    def document(self, key: str) -> DocumentRow:
        """A published document.

        Raises:
            InputError: there is no document with this key.
        """
        for row in self._rows(select(DOCUMENTS).where(DOCUMENTS.c.key == key)):
            return DocumentRow(**row)
        raise InputError(f"the index has no document {key!r}", where=self._where)

    def placements(self) -> list[Placement]:
        """Where chunks stand in the published documents, by document and ordinal."""
        return [Placement(**row) for row in self._rows(select(PLACEMENTS), *PLACE_ORDER)]

    def placements_of(self, content_hash: str) -> list[Placement]:
        """Where a chunk stands in the published documents, by document and ordinal.

        Of a chunk that only the generation before had: where it stood then.

        Raises:
            IndexMismatchError: it stands in none (any more).
        """
        for table in (PLACEMENTS, PLACEMENTS_BEFORE):
            same = select(table).where(table.c.content_hash == content_hash)
            rows = self._rows(same, table.c.document_key, table.c.ordinal)
            if rows:
                return [Placement(**row) for row in rows]
        self._gone(content_hash)

    def embedder(self) -> str:
        """Identity of the embedder whose vectors are published.

        Raises:
            IndexNotFoundError: nothing is published.
        """
        columns = CONTENTS.c
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
        totals = [func.count(), *(func.sum(CONTENTS.c[name]) for name in summed)]
        placed = CONTENTS.c.content_hash.in_(select(PLACEMENTS.c.content_hash))
        with self._reading() as connection:
            documents = connection.scalar(select(func.count()).select_from(DOCUMENTS))
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
                found += structure_problems(connection)
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
            connection = connection.execution_options(**{WRITES: True})
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
            raise translation(error, self._where, damaged) from error

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
        return connection.scalar(select(STATE.c.value).where(STATE.c.name == name))

    @staticmethod
    def _set(connection: Connection, name: str, value: str) -> None:
        connection.execute(delete(STATE).where(STATE.c.name == name))
        connection.execute(insert(STATE).values(name=name, value=value))

    def _restored(self, row: RowMapping) -> Content:
        columns = {name: value for name, value in row.items() if name not in NOT_IN_CONTENT}
        try:
            for name, dtype in ARRAYS.items():
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
        return StorageError(f"the catalogue is damaged ({what})", where=self._where, hint=REBUILD)

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
    return row | {name: row[name].astype(dtype).tobytes() for name, dtype in ARRAYS.items()}


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
