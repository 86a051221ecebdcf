"""Evaluation sets: questions with their answers and passages, and the halves of a set."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from coinkv.errors import InputError, StorageError
from coinkv.evaluate.hub import hub_rows, uniform
from coinkv.model.prompt import unicode_text
from coinkv.store.atomic import publish

Half = Literal["dev", "test", "all"]

_HUB_NAME = re.compile(r"\w[\w.-]*/[\w.-]+(?::[^:]*)?(?::.+)?")
_FILE_SUFFIXES = (".jsonl", ".json", ".gz")
_HINT = "name a JSONL file, a folder, or a hub set such as Xnhyacinth/LongBench:hotpotqa:test"


@dataclass(frozen=True)
class Passage:
    """A text that may be retrieved; `is_supporting` is None where nobody labelled it."""

    title: str
    text: str
    is_supporting: bool | None = None


@dataclass(frozen=True)
class EvalRow:
    """A question with what it is judged by.

    Attributes:
        id: unique in the set; of a document's questions it is `<document's id>#<number from 0>`.
        question: never blank.
        answers: all that count as right; empty for questions that are only timed.
        passages: the texts that came with it, gold ones and distractors.
        document: id of the document that the question is about, where a row is a document.
        where: file and line it came from, for messages.
    """

    id: str
    question: str
    answers: tuple[str, ...] = ()
    passages: tuple[Passage, ...] = ()
    document: str | None = None
    where: str = field(default="", compare=False)


@dataclass(frozen=True)
class EvalSet:
    """Rows in the order of their source, never none, under the name of that source."""

    name: str
    rows: tuple[EvalRow, ...]


def read_set(source: str | Path) -> EvalSet:
    """Read an evaluation set.

    A row is `{"id", "question", "answers", "passages": [{"title", "text", "is_supporting"}]}`, of
    which only the question is required, or a document `{"id", "title", "text", "qas": [{"question",
    "answers"}]}`, which becomes one row a question with the document as its passage. The rows of
    LongBench, HotpotQA, 2WikiMultihopQA and MuSiQue are understood too (`coinkv.evaluate.hub`).
    More fields are ignored; a row without id is known by its line.

    Args:
        source: a JSONL file (may be gzipped), a folder that `datasets.load_dataset` accepts, or a
            hub set `repository[:config[:split]]`.

    Raises:
        InputError: nothing there, or a row that is not as described, named by file and line.
    """
    name, path = str(source), Path(source).expanduser()
    if _is_file(name, path):
        name, found = path.name.removesuffix(".gz").removesuffix(".jsonl"), json_lines(path)
    else:
        found = hub_rows(name)
    read: dict[str, EvalRow] = {}
    for where, fields in found:
        for row in _rows(uniform(fields, where), where):
            if row.id in read:
                raise InputError(f"its id {row.id!r} is that of {read[row.id].where}", where=where)
            read[row.id] = row
    if not read:
        raise InputError("holds no question", where=source)
    return EvalSet(name, tuple(read.values()))


def half(eval_set: EvalSet, which: Half) -> EvalSet:
    """The rows to choose configurations on (`dev`), those to report (`test`), or all.

    A row is in the dev half when the SHA-256 of its id is even; a document's questions go together,
    by the document's id. So the halves are the same everywhere, whatever else a file holds.

    Raises:
        InputError: no such half, or no row in it.
    """
    if which not in ("dev", "test", "all"):
        raise InputError(f"no half {which!r}", hint="choose dev, test or all")
    rows = [row for row in eval_set.rows if which in ("all", _half_of(row))]
    if not rows:
        raise InputError(
            f"no row is in the {which} half", where=eval_set.name, hint="choose all (--half all)"
        )
    return replace(eval_set, rows=tuple(rows))


def require_answers(eval_set: EvalSet) -> None:
    """Make sure that every row can be scored.

    Raises:
        InputError: a row has no answer; names its file and line.
    """
    for row in eval_set.rows:
        if not row.answers:
            raise InputError(
                "this question has no answers to compare with",
                where=row.where or f"{eval_set.name}, {row.id}",
                hint='give "answers": [...]',
            )


def write_passages(eval_set: EvalSet, path: str | Path) -> int:
    """Write a set's passages as one corpus that `coinkv.corpus.documents.read_documents` reads.

    Each distinct title and text becomes one document, so that every question retrieves among the
    passages of all (paper arXiv 2608.07458, section 4.1). The file appears whole or not at all.

    Returns:
        The number of documents.

    Raises:
        InputError: no row has a passage.
        StorageError: the file cannot be written.
    """
    texts = dict.fromkeys((p.title, p.text) for row in eval_set.rows for p in row.passages)
    if not texts:
        raise InputError("no row has passages, so there is no corpus", where=eval_set.name)
    lines = [json.dumps({"title": title, "text": text}) + "\n" for title, text in texts]
    try:
        publish(Path(path), [memoryview("".join(lines).encode())], fsync=False)
    except OSError as error:
        raise StorageError(f"cannot be written ({error.strerror})", where=path) from error
    return len(lines)


def json_lines(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The objects of a JSONL file, gzipped when its name ends in `.gz`, with file and line of each.

    Raises:
        InputError: no such file, damaged, no UTF-8, or a line that is no JSON object.
    """
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8-sig")
    except FileNotFoundError as error:
        raise InputError("no such file", where=path, hint=_HINT) from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError("is damaged gzip", where=path, hint="compress it anew") from error
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read as UTF-8 text ({error})", where=path) from error
    # not splitlines: JSON strings may hold U+2028 and its like
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            where = f"{path}, line {number}"
            try:
                fields = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise InputError("this line is no JSON", where=where) from error
            if not isinstance(fields, dict):
                raise InputError("this line is no JSON object", where=where)
            yield where, fields


def _is_file(name: str, path: Path) -> bool:
    """Whether a source means a file, there or not, and neither a folder nor a hub set."""
    repository = name.split(":", 1)[0].strip()
    if not repository:
        raise InputError("is no name of a set", where=repr(name), hint=_HINT)
    folder = Path(repository).expanduser()
    try:
        if path.is_file() or folder.is_dir():
            return path.is_file()
    except (OSError, ValueError) as error:
        raise InputError("no such file", where=f"{name[:40]}...", hint=_HINT) from error
    return path.suffix in _FILE_SUFFIXES or _HUB_NAME.fullmatch(name) is None


def _half_of(row: EvalRow) -> Half:
    digest = hashlib.sha256((row.document or row.id).encode("utf-8", "surrogatepass")).hexdigest()
    return "dev" if int(digest, 16) % 2 == 0 else "test"


def _rows(fields: Mapping[str, Any], where: str) -> Iterator[EvalRow]:
    name = fields.get("id")
    if name is None:
        name = where.rpartition(", ")[2]
    if not isinstance(name, str | int) or isinstance(name, bool) or name == "":
        raise InputError("its id is no string and no number", where=where)
    _require_unicode(where, "its id", str(name))
    if fields.get("qas") is None:
        passages = tuple(_passage(each, where) for each in _entries(fields, "passages", where))
        question, answers = _asked(fields, where)
        yield EvalRow(str(name), question, answers, passages, where=where)
        return
    document = _passage({"title": fields.get("title"), "text": fields.get("text")}, where)
    for number, entry in enumerate(_entries(fields, "qas", where)):
        question, answers = _asked(entry, where)
        yield EvalRow(f"{name}#{number}", question, answers, (document,), str(name), where)


def _asked(fields: Mapping[str, Any], where: str) -> tuple[str, tuple[str, ...]]:
    question, answers = fields.get("question"), fields.get("answers")
    if not isinstance(question, str) or not question.strip():
        raise InputError("its question is empty or no text", where=where)
    answers = [] if answers is None else answers
    if not isinstance(answers, list) or not all(isinstance(a, str) and a.strip() for a in answers):
        raise InputError("its answers are no list of texts that say something", where=where)
    _require_unicode(where, "its question", question)
    _require_unicode(where, "its answers", *answers)
    return question, tuple(dict.fromkeys(answers))


def _passage(fields: Mapping[str, Any], where: str) -> Passage:
    title, text, label = (fields.get(name) for name in ("title", "text", "is_supporting"))
    if not isinstance(text, str) or not text.strip():
        raise InputError("a passage's text is empty or no text", where=where)
    if not isinstance(title, str | None):
        raise InputError("a passage's title is no text", where=where)
    if not isinstance(label, bool | None):
        raise InputError("a passage's is_supporting is not true, false or null", where=where)
    _require_unicode(where, "a passage", title or "", text)
    return Passage(title or "", text, label)


def _require_unicode(where: str, what: str, *texts: str) -> None:
    for text in texts:
        try:
            unicode_text(text, what)
        except InputError as error:
            raise InputError(error.what, where=where, hint=error.hint) from error


def _entries(fields: Mapping[str, Any], name: str, where: str) -> list[Mapping[str, Any]]:
    entries = fields.get(name)
    entries = [] if entries is None else entries
    if not isinstance(entries, list) or not all(isinstance(each, dict) for each in entries):
        raise InputError(f"its {name} are no list of objects", where=where)
    return entries
