"""Documents: files and JSONL rows read as a key, a title and a text."""

from __future__ import annotations

import codecs
import gzip
import hashlib
import io
import json
import logging
import os
import re
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coinkv.errors import DocumentError

_DROPPED_TAG = re.compile("head|script|style|nav|noscript|template|svg")
_BLOCK_TAG = re.compile(
    "address|article|aside|blockquote|body|caption|details|div|dl|fieldset|figcaption|figure|footer"
    "|form|h[1-6]|header|hr|main|ol|p|pre|section|summary|table|ul"
)
_LINE_TAG = re.compile("br|dd|dt|li|option|tr")
_CONTROLS = dict.fromkeys([*range(9), 11, *range(14, 32), 127])
_SAMPLE = 1 << 16  # characters or bytes looked at to tell binary data or an encoding


@dataclass(frozen=True)
class Document:
    """One text with the name it is known by.

    Attributes:
        key: unique among what was read together: a relative path, or a JSONL row's id or title.
        title: one line, perhaps empty; not repeated as the first line of the text.
        text: lines end with a line feed; character offsets elsewhere refer to it.
    """

    key: str
    title: str
    text: str

    @property
    def content_hash(self) -> str:
        """SHA-256 in hex of title and text; the key is left out."""
        return hashlib.sha256(json.dumps([self.title, self.text]).encode()).hexdigest()


def read_documents(source: Path, *, skipped: list[str] | None = None) -> list[Document]:
    """Read a folder (with its subfolders, hidden files left out), one file, or a JSONL file.

    Formats: txt, md, html, pdf, docx, and jsonl (also gzipped) whose rows are
    `{"title", "text"}` with an optional `id`, or `{"question", "passages": [{"title", "text"}]}`,
    where each distinct passage becomes one document. Text files are UTF-8, or UTF-16 with a byte
    order mark.

    Args:
        source: the folder or file.
        skipped: gets the relative paths of what is no readable kind of file in a folder.

    Returns:
        Documents in order of their path, rows of a JSONL file in file order; at least one.

    Raises:
        DocumentError: nothing there, nothing readable, or a file that is damaged, encrypted, empty,
            binary, in another encoding or may not be read; names the file and what to do.
    """
    source = Path(source)
    documents: list[Document] = []
    for path, name in _files(source):
        suffix = ".jsonl.gz" if name.lower().endswith(".jsonl.gz") else path.suffix.lower()
        readable = path.is_file() and (suffix in _PARSERS or suffix in _ROW_SUFFIXES)
        if readable and suffix in _ROW_SUFFIXES:
            documents += _row_documents(path)
        elif readable:
            title, text = _PARSERS[suffix](_bytes(path), path)
            documents.append(_tidy(name, title or _readable_stem(path), text, path))
        elif not source.is_dir():
            raise DocumentError(
                "is not a kind of document that can be read", where=path, hint=_HINT
            )
        elif skipped is not None:
            skipped.append(name)
    if not documents:
        raise DocumentError("holds no readable document", where=source, hint=_HINT)
    return _with_unique_keys(documents)


def _files(source: Path) -> list[tuple[Path, str]]:
    """Visible files with their names relative to `source`, in order of the name."""

    def refuse(error: OSError) -> None:
        raise _unreadable(Path(error.filename), error) from error

    try:
        source.stat()
    except (OSError, ValueError) as error:
        raise _unreadable(source, error) from error
    if not source.is_dir():
        return [(source, source.name)]
    found = []
    for folder, folders, names in os.walk(source, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        # Word keeps a lock file "~$name.docx" beside an open document.
        paths = [Path(folder, name) for name in names if not name.startswith((".", "~$"))]
        found += [(path, path.relative_to(source).as_posix()) for path in paths]
    return sorted(found, key=lambda entry: entry[1])


def _unreadable(path: Path, error: Exception) -> DocumentError:
    if isinstance(error, FileNotFoundError):
        return DocumentError("no such file or folder", where=path, hint="check the path")
    reason = getattr(error, "strerror", None) or error
    return DocumentError(f"cannot be read ({reason})", where=path, hint="check its permissions")


def _damaged(what: str, error: Exception, path: Path, hint: str) -> DocumentError:
    """What a parser's failure says of the file; that memory ran out says nothing of it."""
    if isinstance(error, MemoryError):
        what = "needs more memory to read than there is"
        return DocumentError(what, where=path, hint="split it")
    reason = " ".join(str(error).split()) or type(error).__name__
    return DocumentError(f"{what} ({reason})", where=path, hint=hint)


def _bytes(path: Path) -> bytes:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from error
    if not raw:
        raise DocumentError("is empty", where=path, hint="fill it or move it away")
    return raw


def _with_unique_keys(documents: list[Document]) -> list[Document]:
    used: set[str] = set()
    times: Counter[str] = Counter()
    unique = []
    for document in documents:
        key = document.key
        while key in used:
            times[document.key] += 1
            key = f"{document.key}#{times[document.key] + 1}"
        used.add(key)
        unique.append(Document(key, document.title, document.text))
    return unique


def _tidy(key: str, title: str, text: str, where: Path, line: int | None = None) -> Document:
    title, text = " ".join(_clean(title).split()), _clean(text)
    repeated = title.strip("# \t")
    first, _, rest = text.partition("\n")
    while repeated and rest.strip() and " ".join(first.strip("# \t").split()) == repeated:
        text = rest.strip("\n")
        first, _, rest = text.partition("\n")
    if not text.strip():
        what = "holds no text" if line is None else f"line {line} holds no text"
        raise DocumentError(what, where=where, hint="give it a text or take it away")
    return Document(key, title, text)


def _clean(text: str) -> str:
    # Half a surrogate pair, or a NUL, cannot be stored or tokenised.
    text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "").removeprefix("\ufeff")
    return re.sub(r"\n(?:[ \t]*+\n){3,}", "\n\n", text).strip()


def _readable_stem(path: Path) -> str:
    return " ".join(re.split(r"[\s_]+|(?<=\w)-(?=\w)", path.stem)).strip() or path.stem


def _decoded(raw: bytes, path: Path) -> str:
    """The text of a UTF-8 file, or UTF-16 with a byte order mark, or a DocumentError."""
    utf16 = raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        text = raw.decode("utf-16" if utf16 else "utf-8")
    except UnicodeDecodeError as error:
        if b"\0" not in raw[:_SAMPLE] or utf16:
            raise _wrong_encoding(raw, error.start, path) from error
        text = "\0"
    sample = text[:_SAMPLE]
    if "\0" in text or 3 * len(sample.translate(_CONTROLS)) < 2 * len(sample):
        raise DocumentError("is binary data, not text", where=path, hint="check what it is")
    return text


def _wrong_encoding(raw: bytes, offset: int, path: Path) -> DocumentError:
    import charset_normalizer

    around = raw[max(0, offset - _SAMPLE // 2) : offset + _SAMPLE // 2]
    best = charset_normalizer.from_bytes(around).best()
    likely = f", likely {best.encoding}" if best else ""
    return DocumentError(
        f"is not UTF-8 (byte {offset}{likely})", where=path, hint="convert it to UTF-8"
    )


def _plain(raw: bytes, path: Path) -> tuple[str, str]:
    return "", _decoded(raw, path)


def _markdown(raw: bytes, path: Path) -> tuple[str, str]:
    text = _clean(_decoded(raw, path))
    # A title underlined with "=" is written as a "#" heading, so that it can be told from text.
    text = re.sub(r"\A([^\n#]+)\n=+[ \t]*(?=\n|\Z)", r"# \1", text)
    fenced = False
    for line in text.split("\n"):
        if line.lstrip().startswith(("```", "~~~")):
            fenced = not fenced
        heading = re.fullmatch(r" {0,3}#{1,6}\s+(.*\S)\s*", line)
        if heading and not fenced:
            return re.sub(r"\s+#+$", "", heading.group(1)), text
    return "", text


def _html(raw: bytes, path: Path) -> tuple[str, str]:
    from bs4 import BeautifulSoup

    text = _decoded(raw, path)
    with _quiet("bs4"):
        soup = BeautifulSoup(text, "lxml")
    heading = soup.find("title") or soup.find("h1")
    lines = re.sub(r"[^\S\n]*\n[^\S\n]*", "\n", "".join(_html_pieces(soup)))
    return heading.get_text(" ", strip=True) if heading else "", re.sub(r"\n{3,}", "\n\n", lines)


def _html_pieces(soup: Any) -> Iterator[str]:
    from bs4.element import NavigableString, Tag

    # A stack of our own: pages nest deeper than Python recurses. A plain str is a line break.
    pending: list[Any] = [soup]
    while pending:
        node = pending.pop()
        if type(node) is str:
            yield node
        elif type(node) is NavigableString:
            yield node if node.find_parent("pre") else re.sub(r"\s+", " ", node)
        elif isinstance(node, Tag) and not _DROPPED_TAG.fullmatch(node.name):
            block = _BLOCK_TAG.fullmatch(node.name)
            if node.name in ("td", "th") and node.find_previous_sibling(["td", "th"]):
                yield " | "
            if block or _LINE_TAG.fullmatch(node.name):
                yield "\n"
            if block:
                pending.append("\n")
            pending += reversed(node.contents)


def _pdf(raw: bytes, path: Path) -> tuple[str, str]:
    import pypdf

    hint = "save it anew, or convert it to text"
    with _quiet("pypdf"):
        try:
            reader = pypdf.PdfReader(io.BytesIO(raw))
            locked = reader.is_encrypted and not reader.decrypt("")
            if not locked:
                text = "\n\n".join(page.extract_text() for page in reader.pages)
                title = str((reader.metadata and reader.metadata.title) or "")
        except pypdf.errors.DependencyError:
            locked = True
        except Exception as error:
            raise _damaged("is a damaged PDF", error, path, hint) from error
    if locked:
        raise DocumentError("is an encrypted PDF", where=path, hint="save it without a password")
    if not text.strip():
        hint = "run text recognition (OCR) on it first"
        raise DocumentError("is a PDF without a text layer", where=path, hint=hint)
    return title, text


def _docx(raw: bytes, path: Path) -> tuple[str, str]:
    import docx

    try:
        document = docx.Document(io.BytesIO(raw))
        blocks = [
            block.text if hasattr(block, "text") else "\n".join(map(_docx_row, block.rows))
            for block in document.iter_inner_content()
        ]
        return str(document.core_properties.title or ""), "\n\n".join(filter(str.strip, blocks))
    except Exception as error:
        hint = "save it anew as .docx without a password"
        raise _damaged("is not a readable Word file", error, path, hint) from error


def _docx_row(row: Any) -> str:
    # A merged cell is listed once for every column it spans.
    cells = {id(cell._tc): cell.text.replace("\n", " ").strip() for cell in row.cells}
    return " | ".join(cells.values())


@contextmanager
def _quiet(logger: str) -> Iterator[None]:
    """Keep a parser's complaints from standard error: what matters is raised."""
    log = logging.getLogger(logger)
    level = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


@dataclass(frozen=True)
class _Row:
    """A text of a JSONL file; `identifier` is None for a passage of a question."""

    line: int
    identifier: str | None
    title: str
    text: str


def _row_documents(path: Path) -> list[Document]:
    raw = _bytes(path)
    if path.name.lower().endswith(".gz"):
        try:
            raw = gzip.decompress(raw)
        except (OSError, EOFError, zlib.error) as error:
            raise DocumentError("is damaged gzip", where=path, hint="compress it anew") from error
    # Not splitlines: JSON strings may hold U+2028 and its like.
    lines = enumerate(_decoded(raw, path).removeprefix("\ufeff").split("\n"), 1)
    rows = [row for line, text in lines if text.strip() for row in _rows(text, path, line)]
    times = Counter(row.identifier for row in rows)
    passages: set[tuple[str, str]] = set()
    documents = []
    for row in rows:
        if row.identifier is None:
            if (row.title, row.text) in passages:
                continue
            passages.add((row.title, row.text))
        identified = row.identifier if times[row.identifier] == 1 else None
        key = identified or " ".join(row.title.split()) or f"{path.name}:{row.line}"
        documents.append(_tidy(key, row.title, row.text, path, row.line))
    return documents


def _rows(line_text: str, path: Path, line: int) -> list[_Row]:
    hint = 'write {"title": ..., "text": ...} on one line'
    try:
        fields = json.loads(line_text)
    except (ValueError, RecursionError) as error:
        raise DocumentError(f"line {line} is not JSON", where=path, hint=hint) from error
    passages = fields.get("passages") if isinstance(fields, dict) else None
    entries: list[Any] = passages if isinstance(passages, list) else [fields]
    rows = []
    for entry in entries:
        title = (entry.get("title") or "") if isinstance(entry, dict) else None
        text = entry.get("text") if isinstance(entry, dict) else None
        if not isinstance(title, str) or not isinstance(text, str):
            raise DocumentError(f'line {line} has no "text"', where=path, hint=hint)
        identifier = None if entries is passages else str(entry.get("id") or "")
        rows.append(_Row(line, identifier, title, text))
    return rows


_ROW_SUFFIXES = (".jsonl", ".jsonl.gz")
_PARSERS: dict[str, Callable[[bytes, Path], tuple[str, str]]] = {
    ".txt": _plain,
    ".md": _markdown,
    ".markdown": _markdown,
    ".html": _html,
    ".htm": _html,
    ".pdf": _pdf,
    ".docx": _docx,
}
_HINT = f"give files of type {', '.join([*_PARSERS, *_ROW_SUFFIXES])}"
