"""A file that a client sends can be anything; reading it costs this server a bounded amount."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from in_process_library import spooled

from coinkv.serve.library.parsing import ParseLimits, parse_file

LIMITS = ParseLimits(
    seconds=20.0, memory_bytes=1_000_000_000, file_bytes=50_000_000, text_bytes=50_000_000
)


def parsed(name, content, **limits):
    with spooled(content) as file:
        return parse_file(name, file, replace(LIMITS, **limits))


def refused(name, content, **limits):
    found = parsed(name, content, **limits)
    assert found.documents == ()
    return found.reason


def word_file(xml: bytes) -> bytes:
    """A .docx with this as its document; python-docx reads it."""
    import docx

    made = io.BytesIO()
    docx.Document().save(made)
    out = io.BytesIO()
    with zipfile.ZipFile(made) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, xml if name == "word/document.xml" else old.read(name))
    return out.getvalue()


def looping_pdf() -> bytes:
    """A PDF whose tree of pages contains itself."""
    parts = [
        b"1 0 obj <</Type /Catalog /Pages 2 0 R>> endobj\n",
        b"2 0 obj <</Type /Pages /Count 3 /Kids [3 0 R]>> endobj\n",
        b"3 0 obj <</Type /Pages /Count 3 /Parent 2 0 R /Kids [2 0 R]>> endobj\n",
    ]
    body, offsets = b"%PDF-1.4\n", []
    for part in parts:
        offsets.append(len(body))
        body += part
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    return (
        body
        + b"xref\n0 4\n0000000000 65535 f \n"
        + table
        + b"trailer <</Size 4 /Root 1 0 R>>\nstartxref\n%d\n%%%%EOF" % len(body)
    )


def test_a_text_file_is_a_document_named_and_titled_after_the_file():
    (document,) = parsed("notes/old_mill.TXT", "The mill stopped.").documents
    assert (document.name, document.title, document.text) == (
        "notes/old_mill.TXT", "old mill", "The mill stopped.",
    )  # fmt: skip


def test_rows_of_a_jsonl_file_keep_the_names_they_have():
    rows = [{"id": "r1", "title": "One", "text": "first"}, {"text": "second"}]
    first, second = parsed("rows.jsonl", "\n".join(map(json.dumps, rows))).documents
    assert (first.name, first.title, first.text) == ("r1", "One", "first")
    assert (second.name, second.text) == ("rows.jsonl:2", "second")


def test_a_title_inside_the_file_goes_before_its_name():
    page = "<html><title>The school</title><p>It opened in 1901.</p></html>"
    assert parsed("x.html", page).documents[0].title == "The school"


@pytest.mark.parametrize(
    "name",
    [
        "../../etc/passwd.txt",
        "/abs.txt",
        "a\0b.txt",
        "CON.txt",
        "\u202etxt.exe.txt",
        "x" * 9999 + ".txt",
    ],
)
def test_no_name_reaches_the_file_system(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (document,) = parsed(name, "harmless").documents
    assert document.name == name
    assert list(tmp_path.rglob("*")) == []


@pytest.mark.parametrize("name", ["passwd", "", "..", "archive.tar.zst!", "x.exe", "x."])
def test_a_file_of_no_readable_kind_is_refused_with_a_reason(name):
    reason = refused(name, "text")
    assert "ending" in reason or "not a kind of document" in reason


@pytest.mark.parametrize("content", [b"", b"\0\1\2\xff" * 100, b"caf\xe9 au lait"])
def test_what_is_no_text_is_refused_with_a_reason_that_names_no_path(content):
    reason = refused("a.txt", content)
    assert reason
    assert "/" not in reason.replace("UTF-16/", "")


def test_a_zip_bomb_in_a_word_file_ends_within_the_memory_it_may_have():
    head = b'<w:document xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main">'
    bomb = word_file(head + b"<!--" + b"A" * 150_000_000 + b"--><w:body/></w:document>")
    assert len(bomb) < 1_000_000
    assert "memory" in refused("a.docx", bomb, memory_bytes=200_000_000)


def test_a_gzip_bomb_ends_within_the_memory_it_may_have():
    bomb = gzip.compress(b"\n" * 300_000_000, 1)
    assert "memory" in refused("a.jsonl.gz", bomb, memory_bytes=200_000_000)


def test_more_text_than_an_upload_may_hold_is_refused():
    packed = gzip.compress(json.dumps({"text": "word " * 400_000}).encode())
    assert "more text" in refused("a.jsonl.gz", packed, text_bytes=1_000_000)


def test_a_page_nested_fifty_thousand_deep_is_read_or_refused():
    page = "<div>" * 50_000 + "deep" + "</div>" * 50_000
    found = parsed("a.html", page)
    assert found.reason or "deep" in found.documents[0].text


def test_a_pdf_that_contains_itself_is_refused():
    assert refused("a.pdf", looping_pdf(), seconds=5.0)


def test_a_reader_that_does_not_end_is_ended(monkeypatch):
    endless = (sys.executable, "-c", "while True: pass")
    monkeypatch.setattr("coinkv.serve.library.parsing.module_command", lambda *_: endless)
    assert "too long" in refused("a.txt", "x", seconds=0.3)


def test_a_reader_gets_nothing_of_the_servers_environment_and_files(monkeypatch, tmp_path):
    code = (
        "import json, os, sys; print(json.dumps({'documents': [{'key': None, 'title': '', 'text': "
        "json.dumps([dict(os.environ), os.getcwd(), os.listdir('.'), "
        "sorted(os.listdir('/proc/self/fd'))])}]}))"
    )
    monkeypatch.setenv("SECRET", "s3cret")
    monkeypatch.setattr(
        "coinkv.serve.library.parsing.module_command", lambda *_: (sys.executable, "-c", code)
    )
    with (tmp_path / "open").open("w") as held:
        os.set_inheritable(held.fileno(), True)
        environment, folder, content, descriptors = json.loads(
            parsed("a.txt", "x").documents[0].text
        )
    assert "SECRET" not in environment
    assert "COINKV_HOME" not in environment
    assert content == []
    assert not Path(folder).exists()  # a folder of its own, gone with it
    assert len(descriptors) <= 4  # the three standard ones, and the listing's own


def test_the_reader_imports_neither_torch_nor_numpy():
    code = (
        "import sys, coinkv.serve.library.parse;"
        "print([m for m in ('torch', 'numpy', 'transformers', 'fastapi') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
