"""Documents: what each kind of file becomes, and what is said when one cannot be read."""

from __future__ import annotations

import gzip
import io
import json
import logging
import zlib
from pathlib import Path

import docx
import pypdf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coinkv.corpus.documents import Document, read_documents
from coinkv.errors import DocumentError, InputError


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def read_one(path: Path) -> Document:
    (document,) = read_documents(path)
    return document


def pdf_bytes(lines: list[str], title: str | None = None) -> bytes:
    """A one-page PDF written by hand: pypdf reads PDFs but cannot set text."""
    shown = "".join(f"({line}) Tj 0 -14 Td " for line in lines)
    stream = f"BT /F1 12 Tf 72 700 Td {shown}ET".encode()
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R "
        b"/Resources << /Font << /F1 5 0 R >> >> >>",
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        b"<< /Title (%s) >>" % (title or "").encode(),
    ]
    out, places = io.BytesIO(b""), []
    out.write(b"%PDF-1.4\n")
    for number, body in enumerate(objects, 1):
        places.append(out.tell())
        out.write(b"%d 0 obj\n%s\nendobj\n" % (number, body))
    start = out.tell()
    out.write(b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1))
    out.writelines(b"%010d 00000 n \n" % place for place in places)
    out.write(b"trailer\n<< /Size %d /Root 1 0 R /Info 6 0 R >>\n" % (len(objects) + 1))
    out.write(b"startxref\n%d\n%%%%EOF\n" % start)
    return out.getvalue()


def refusal(path: Path) -> str:
    with pytest.raises(DocumentError) as caught:
        read_documents(path)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    assert caught.value.hint
    return message


def test_a_text_file_keeps_its_text_and_takes_its_title_from_its_name(tmp_path: Path) -> None:
    path = write(tmp_path / "annual_report-2024.txt", "\ufeffOne.\r\n\r\nTwo  spaces.\rThree.\n")
    assert read_one(path) == Document(
        "annual_report-2024.txt", "annual report 2024", "One.\n\nTwo  spaces.\nThree."
    )


def test_three_blank_lines_or_more_collapse_and_fewer_stay(tmp_path: Path) -> None:
    path = write(tmp_path / "long.txt", "a\n\n\nb\n \n\t\n\n\nc")
    assert read_one(path).text == "a\n\n\nb\n\nc"


def test_utf16_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    assert read_one(write(tmp_path / "a.txt", "Größe 我".encode("utf-16"))).text == "Größe 我"


@pytest.mark.parametrize("heading", ["# Alice *x*\n", "Alice *x*\n=====\n", "## Alice *x* ##\n"])
def test_a_markdown_title_is_its_first_heading_and_leaves_the_text(
    tmp_path: Path, heading: str
) -> None:
    document = read_one(write(tmp_path / "a.md", f"{heading}\nIn Wonderland.\n\n# Other\n"))
    assert (document.title, document.text) == ("Alice *x*", "In Wonderland.\n\n# Other")


def test_a_comment_inside_a_code_fence_is_no_markdown_title(tmp_path: Path) -> None:
    document = read_one(write(tmp_path / "a.md", "```\n# no\n```\n\n# Yes\n\nText."))
    assert document.title == "Yes"
    assert document.text.startswith("```\n# no")


def test_html_loses_scripts_and_navigation_and_keeps_its_blocks(tmp_path: Path) -> None:
    page = """<html><head><title>The  Title</title><style>p {x: y}</style></head><body>
    <nav>Home</nav><h1>The Title</h1><p>One <b>bold</b>
    word.</p><!-- hidden --><p>Two<br>lines</p><ul><li>a</li><li>b</li></ul>
    <table><tr><td>1</td><td>2</td></tr><tr><td>3</td></tr></table><pre>x\n  y</pre>
    <script>var no;</script></body></html>"""
    document = read_one(write(tmp_path / "a.html", page))
    assert document.title == "The Title"
    assert document.text == "One bold word.\n\nTwo\nlines\n\na\nb\n\n1 | 2\n3\n\nx\ny"


def test_html_without_a_title_takes_its_first_heading(tmp_path: Path) -> None:
    document = read_one(write(tmp_path / "a.htm", "<h1>Head</h1><p>Body</p>"))
    assert (document.title, document.text) == ("Head", "Body")


def test_deeply_nested_html_keeps_its_text(tmp_path: Path) -> None:
    page = "<div>" * 200 + "deep" + "</div>" * 200
    assert read_one(write(tmp_path / "a.html", page)).text == "deep"


def test_a_pdf_gives_its_text_and_its_title(tmp_path: Path) -> None:
    document = read_one(write(tmp_path / "a.pdf", pdf_bytes(["First line", "second."], "Named")))
    assert document.title == "Named"
    assert document.text.split() == ["First", "line", "second."]


def test_a_pdf_without_text_says_so(tmp_path: Path) -> None:
    assert "text layer" in refusal(write(tmp_path / "scan.pdf", pdf_bytes([])))


def test_an_encrypted_pdf_says_so(tmp_path: Path) -> None:
    writer = pypdf.PdfWriter(clone_from=io.BytesIO(pdf_bytes(["secret"])))
    writer.encrypt("word", algorithm="RC4-128")
    writer.write(tmp_path / "a.pdf")
    assert "encrypted" in refusal(tmp_path / "a.pdf")


def test_a_pdf_with_only_an_owner_password_is_read(tmp_path: Path) -> None:
    writer = pypdf.PdfWriter(clone_from=io.BytesIO(pdf_bytes(["open"])))
    writer.encrypt("", "owner", algorithm="RC4-128")
    writer.write(tmp_path / "a.pdf")
    assert read_one(tmp_path / "a.pdf").text == "open"


@pytest.mark.parametrize("keep", [9, 60, 300])
def test_a_damaged_pdf_is_refused_without_noise(
    tmp_path: Path, keep: int, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "a.pdf", pdf_bytes(["text"])[:keep])
    assert "PDF" in refusal(path)
    assert caplog.records == []
    assert capfd.readouterr().err == ""


def test_reading_a_pdf_leaves_the_loggers_as_they_were(tmp_path: Path) -> None:
    logging.getLogger("pypdf").setLevel(logging.INFO)
    read_documents(write(tmp_path / "a.pdf", pdf_bytes(["text"])))
    assert logging.getLogger("pypdf").level == logging.INFO
    logging.getLogger("pypdf").setLevel(logging.NOTSET)


def test_a_word_file_keeps_headings_paragraphs_and_tables_in_order(tmp_path: Path) -> None:
    word = docx.Document()
    word.core_properties.title = "Named"
    word.add_heading("Head", 1)
    word.add_paragraph("Before.")
    table = word.add_table(rows=2, cols=2)
    for cell, text in zip([c for r in table.rows for c in r.cells], "abcd", strict=True):
        cell.text = text
    table.cell(1, 0).merge(table.cell(1, 1))
    word.add_paragraph("After.")
    word.save(tmp_path / "a.docx")
    document = read_one(tmp_path / "a.docx")
    assert document.title == "Named"
    assert document.text == "Head\n\nBefore.\n\na | b\nc d\n\nAfter."


@pytest.mark.parametrize("content", [b"PK\x03\x04 broken", b"\xd0\xcf\x11\xe0 encrypted", b"text"])
def test_a_damaged_word_file_is_refused(tmp_path: Path, content: bytes) -> None:
    assert "Word" in refusal(write(tmp_path / "a.docx", content))


def test_a_folder_is_read_in_order_without_hidden_files_and_lists_what_it_skips(
    tmp_path: Path,
) -> None:
    for name in ("b/z.txt", "a.txt", "b.txt", ".hidden/x.txt", "b/.y.txt", "~$a.docx"):
        write(tmp_path / name, f"text of {name}")
    write(tmp_path / "b/picture.png", b"\x89PNG")
    (tmp_path / "broken.txt").symlink_to(tmp_path / "nowhere")
    skipped: list[str] = []
    documents = read_documents(tmp_path, skipped=skipped)
    assert [document.key for document in documents] == ["a.txt", "b.txt", "b/z.txt"]
    assert skipped == ["b/picture.png", "broken.txt"]


def test_one_damaged_file_of_a_folder_is_named(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", "fine")
    bad = write(tmp_path / "b.txt", "")
    with pytest.raises(DocumentError) as caught:
        read_documents(tmp_path)
    assert str(bad) in str(caught.value)


def test_a_folder_without_documents_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.png", b"\x89PNG")
    assert "no readable document" in refusal(tmp_path)


@pytest.mark.parametrize("name", ["nowhere", "nowhere.txt", "a\0b", "x" * 300])
def test_a_path_that_leads_nowhere_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(DocumentError):
        read_documents(tmp_path / name)


def test_a_single_file_of_unknown_kind_is_refused(tmp_path: Path) -> None:
    assert ".docx" in refusal(write(tmp_path / "a.odt", "text"))


def test_a_file_that_may_not_be_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.txt", "text")

    def deny(_: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    # A test run as root may read everything, so the system call is made to refuse.
    monkeypatch.setattr(Path, "read_bytes", deny)
    assert "Permission denied" in refusal(path)


@pytest.mark.parametrize("content", ["", " \n\t\n"])
def test_a_file_without_text_is_refused(tmp_path: Path, content: str) -> None:
    refusal(write(tmp_path / "a.txt", content))


@pytest.mark.parametrize("content", [b"\x7fELF\0\0\xff\xfe", b"ab\0cd", bytes(range(1, 9)) * 50])
def test_binary_data_named_as_text_is_refused(tmp_path: Path, content: bytes) -> None:
    assert "binary" in refusal(write(tmp_path / "a.txt", content))


def test_another_encoding_is_named_with_the_byte_where_it_shows(tmp_path: Path) -> None:
    text = "Die Straße führt über die Brücke nach Süden, wo die Häuser höher stehen. " * 20
    message = refusal(write(tmp_path / "a.txt", text.encode("cp1252")))
    assert f"byte {text.index('ß')}" in message
    assert "likely" in message
    assert "UTF-8" in message


def test_half_a_utf16_character_is_refused(tmp_path: Path) -> None:
    assert "byte" in refusal(write(tmp_path / "a.txt", "ab".encode("utf-16")[:-1]))


def test_five_megabytes_on_one_line_are_read(tmp_path: Path) -> None:
    line = "word " * 1_000_000
    assert len(read_one(write(tmp_path / "a.txt", line)).text) == len(line) - 1
    page = read_one(write(tmp_path / "a.html", "<p>x</p>" * 30_000 + line))
    assert page.text.endswith("word")


def jsonl(path: Path, rows: list[object]) -> Path:
    return write(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def test_rows_are_named_by_id_when_unique_else_by_title(tmp_path: Path) -> None:
    rows = [
        {"id": "one", "title": "A", "text": "1"},
        {"id": "same", "title": "B", "text": "2"},
        {"id": "same", "title": "B", "text": "3"},
        {"title": "B", "text": "4\u2028still 4"},
        {"id": 7, "title": "C", "text": "5", "qas": []},
        {"text": "6"},
    ]
    documents = read_documents(jsonl(tmp_path / "a.jsonl", rows))
    assert [document.key for document in documents] == ["one", "B", "B#2", "B#3", "7", "a.jsonl:6"]
    assert documents[3].text == "4\u2028still 4"


def test_a_key_made_unique_never_meets_one_that_was_given(tmp_path: Path) -> None:
    rows = [{"id": "B#2", "text": "1"}, {"title": "B", "text": "2"}, {"title": "B", "text": "3"}]
    documents = read_documents(jsonl(tmp_path / "a.jsonl", rows))
    assert [document.key for document in documents] == ["B#2", "B", "B#3"]


def test_every_distinct_passage_of_questions_is_one_document(tmp_path: Path) -> None:
    shared = {"title": "Egg", "text": "A film.", "is_supporting": True}
    rows = [
        {
            "id": "q1",
            "question": "?",
            "answers": ["x"],
            "passages": [shared, {**shared, "text": "B"}],
        },
        {"id": "q2", "question": "?", "answers": ["y"], "passages": [shared]},
    ]
    documents = read_documents(jsonl(tmp_path / "a.jsonl", rows))
    assert [(d.key, d.text) for d in documents] == [("Egg", "A film."), ("Egg#2", "B")]


def test_a_row_does_not_repeat_its_title_as_first_line(tmp_path: Path) -> None:
    rows = [{"title": "Virus", "text": "Virus\n\nIt spreads."}, {"title": "Only", "text": "Only"}]
    documents = read_documents(jsonl(tmp_path / "a.jsonl", rows))
    assert [document.text for document in documents] == ["It spreads.", "Only"]


def test_gzipped_rows_are_read_and_damage_is_told(tmp_path: Path) -> None:
    raw = gzip.compress(b'{"title": "A", "text": "1"}\n')
    assert read_one(write(tmp_path / "a.jsonl.gz", raw)).key == "A"
    assert "gzip" in refusal(write(tmp_path / "b.jsonl.gz", raw[:-9]))
    assert "gzip" in refusal(write(tmp_path / "c.jsonl.gz", zlib.compress(b"x")))


@pytest.mark.parametrize(
    "row",
    ["{", "[]", '"x"', '{"title": "A"}', '{"text": 5}', '{"passages": [3]}', '{"passages": 3}',
     '{"text": ""}', '{"passages": [{"title": "A"}]}', "[" * 100_000, '{"text": "a", "title": 1}'],
)  # fmt: skip
def test_a_bad_row_is_refused_with_its_line(tmp_path: Path, row: str) -> None:
    path = write(tmp_path / "a.jsonl", '{"text": "fine"}\n\n' + row + "\n")
    assert "line 3" in refusal(path)


def test_half_a_surrogate_pair_does_not_reach_the_text(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"title": "x\\ud83d", "text": "a\\ud83d b\\u0000c"}')
    document = read_one(path)
    assert document.text == "a\ufffd bc"
    assert document.content_hash


def test_errors_of_documents_are_input_errors() -> None:
    assert DocumentError("x").exit_code == InputError.exit_code == 2


@given(st.text(), st.text(), st.text(), st.text())
def test_the_content_hash_tells_where_the_title_ends(a: str, b: str, c: str, d: str) -> None:
    same = Document("k", a, b).content_hash == Document("other", c, d).content_hash
    assert same == ((a, b) == (c, d))
    if a:
        moved = Document("k", a[:-1], a[-1] + b)
        assert moved.content_hash != Document("k", a, b).content_hash
