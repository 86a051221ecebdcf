"""Documents over HTTP: uploaded, indexed while somebody watches, read, removed, never misused."""

from __future__ import annotations

import gzip
import json
import os
import select
import socket
import threading
from urllib.parse import quote, urlsplit

import httpx
import pytest
from in_process_library import InProcessIndexer, becomes_true
from serving import running, settings_for

from coinkv.serve.api.errors import ErrorReply
from coinkv.serve.api.indexes import IndexReply
from coinkv.serve.api.jobs import MOST_LISTED, JobReply, job_facts
from coinkv.serve.library.jobs import Job
from coinkv.serve.security.keys import Keys
from raw_http import head_on
from small_corpus import DOCUMENTS

MOST = 300_000


class Site:
    """A running server whose jobs are done in this process, and a client of it."""

    def __init__(self, server, gate, data):
        self.server, self.gate, self.data = server, gate, data
        self.http = httpx.Client(base_url=server.url, timeout=60)

    def upload(self, documents, index="village", **more):
        parts = [("files", (name, content)) for name, content in documents.items()]
        return self.http.post(f"/v1/indexes/{index}/documents", files=parts, **more)

    def events(self, job_id):
        """Names and jobs of a job's events, up to its end."""
        found = []
        with self.http.stream("GET", f"/v1/jobs/{job_id}/events") as reply:
            assert reply.headers["content-type"].startswith("text/event-stream")
            for line in reply.iter_lines():
                if line.startswith("event: "):
                    found.append([line.removeprefix("event: ")])
                elif line.startswith("data: "):
                    found[-1].append(JobReply.model_validate_json(line.removeprefix("data: ")))
        return found

    def done(self, reply):
        assert reply.status_code == 202, reply.text
        (name, job) = self.events(reply.json()["id"])[-1]
        assert (name, job.state) == ("done", "done"), job.error
        return job

    def filled(self, index, documents):
        self.done(self.upload(documents, index))
        return f"/v1/indexes/{index}"


@pytest.fixture(scope="module")
def site(backbone, model_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    gate = threading.Event()
    gate.set()
    settings = settings_for(folder, model=str(model_folder), max_upload_bytes=MOST, max_files=5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "coinkv.serve.library.indexing.Indexer",
            lambda *_: InProcessIndexer(backbone, gate),
        )
        with running(settings, backbone) as server:
            yield Site(server, gate, settings.data_dir)


def refusal(reply, status):
    assert reply.status_code == status, reply.text
    return ErrorReply.model_validate(reply.json()).error.message


def test_files_are_uploaded_indexed_while_somebody_watches_and_read_back(site):
    sent = {name: DOCUMENTS[name] for name in ("bridge.txt", "mill.md")}
    reply = site.upload({**sent, "photo.png": b"\x89PNG"}, "library")
    job = JobReply.model_validate(reply.json())
    assert (reply.status_code, job.kind, job.documents) == (202, "add", ["bridge.txt", "mill.md"])
    assert [each.file for each in job.skipped] == ["photo.png"]
    events = site.events(job.id)
    assert [name for name, _ in events[:-1]] == ["progress"] * (len(events) - 1)
    assert events[-1][0] == "done"
    entry = IndexReply.model_validate(site.http.get("/v1/indexes/library").json())
    assert (entry.state, entry.documents, entry.model) == ("ready", 2, "coinrag/library")
    assert entry.job.id == job.id
    assert site.http.get(f"/v1/jobs/{job.id}").json()["state"] == "done"
    listed = site.http.get("/v1/indexes/library/documents").json()
    assert [each["id"] for each in listed["data"]] == ["bridge.txt", "mill.md"]
    assert listed["has_more"] is False
    text = DOCUMENTS["bridge.txt"]
    document = site.http.get("/v1/indexes/library/documents/bridge.txt?start=4&end=16").json()
    assert document == {
        "id": "bridge.txt", "title": "bridge", "text": text[4:16], "start": 4, "end": 16,
        "characters": len(text),
    }  # fmt: skip


def test_documents_may_come_as_json_with_or_without_ids(site):
    body = {
        "documents": [
            {"id": "fish/trout", "title": "Trout", "text": "Trout live in cold water."},
            {"title": "Herons", "text": "Herons hunt at dawn."},
            {"text": "No title, no id."},
        ]
    }
    job = site.done(site.http.post("/v1/indexes/json/documents", json=body))
    assert job.documents[:2] == ["fish/trout", "Herons"]
    assert job.documents[2].startswith("document-")
    document = site.http.get("/v1/indexes/json/documents/fish/trout").json()
    assert (document["title"], document["text"]) == ("Trout", "Trout live in cold water.")


def test_documents_are_listed_page_by_page(site):
    index = site.filled("pages", {f"{n}.txt": f"Document {n}." for n in range(5)})
    pages, after = [], ""
    while True:
        page = site.http.get(f"{index}/documents", params={"after": after, "limit": 2}).json()
        pages.append([each["id"] for each in page["data"]])
        after = pages[-1][-1]
        if not page["has_more"]:
            break
    assert pages == [["0.txt", "1.txt"], ["2.txt", "3.txt"], ["4.txt"]]


def test_a_document_is_removed_by_a_job_and_a_whole_index_at_once(site):
    index = site.filled("short", {"a.txt": "One.", "b.txt": "Two."})
    assert site.done(site.http.delete(f"{index}/documents/a.txt")).documents == ["a.txt"]
    refusal(site.http.get(f"{index}/documents/a.txt"), 404)
    assert site.http.get(f"{index}/documents/b.txt").status_code == 200
    deleted = site.http.delete(index)
    assert deleted.json() == {"id": "short", "object": "index", "deleted": True}
    refusal(site.http.get(index), 404)
    refusal(site.http.delete(index), 404)
    assert "short" not in [each["id"] for each in site.http.get("/v1/indexes").json()["data"]]


def test_an_index_is_made_once(site):
    first = site.http.post("/v1/indexes", json={"name": "made"})
    again = site.http.post("/v1/indexes", json={"name": "made"})
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json()
    assert (first.json()["state"], first.json()["job"]) == ("empty", None)


@pytest.mark.parametrize(
    "name", ["../../etc/passwd.txt", "/etc/passwd.txt", "..\\..\\x.txt", "NUL.txt", "\u202eabc.txt"]
)
def test_no_file_name_reaches_the_file_system_or_leaves_its_address(site, name):
    (key,) = site.done(site.upload({name: "Harmless."}, "names")).documents
    address = f"/v1/indexes/names/documents/{quote(key, safe='')}"
    assert site.http.get(address).json()["text"] == "Harmless."
    assert ".." not in key
    assert not key.startswith("/")
    # walked, since indexing may remove folders meanwhile
    kept = [each for _, folders, names in os.walk(site.data) for each in (*folders, *names)]
    assert kept
    assert not [each for each in kept if "passwd" in each]
    site.done(site.http.delete(address))


def test_a_long_name_is_cut_and_serves_all_the_same(site):
    (key,) = site.done(site.upload({"n" * 2000 + ".txt": "Long."}, "names")).documents
    assert len(key) <= 512
    assert site.http.get(f"/v1/indexes/names/documents/{quote(key)}").json()["text"] == "Long."


def test_an_upload_that_is_too_large_is_refused_before_it_is_read_whole(site):
    where = urlsplit(site.server.url)
    head = (
        "POST /v1/indexes/large/documents HTTP/1.1\r\nTransfer-Encoding: chunked\r\n"
        f"Host: {where.netloc}\r\nContent-Type: multipart/form-data; boundary=x\r\n\r\n"
    )
    part = b'--x\r\ncontent-disposition: form-data; name="files"; filename="a.txt"\r\n\r\n'
    with socket.create_connection((where.hostname, where.port)) as client:
        client.sendall(head.encode() + b"%x\r\n%s\r\n" % (len(part), part))
        sent = 0
        while not select.select([client], [], [], 0.01)[0]:
            client.sendall(b"2710\r\n" + b"word " * 2000 + b"\r\n")
            sent += 10_000
            assert sent < 100 * MOST
        assert b"413" in head_on(client).split(b"\r\n")[0]
    refusal(site.http.get("/v1/indexes/large"), 404)


def test_more_files_than_allowed_are_refused(site):
    many = {f"{n}.txt": "x" for n in range(6)}
    assert "more than 5 files" in refusal(site.upload(many, "many"), 413)


def test_more_text_than_allowed_is_refused_although_it_came_packed(site):
    packed = gzip.compress(json.dumps({"text": "word " * MOST}).encode())
    assert "more text" in refusal(site.upload({"a.jsonl.gz": packed}, "packed"), 400)


FORM = "multipart/form-data; boundary=x"


def part(disposition: bytes, content: bytes = b"x") -> bytes:
    head = b"--x\r\ncontent-disposition: form-data; " + disposition
    return head + b"\r\n\r\n" + content + b"\r\n--x--"


def rows(*documents: str) -> bytes:
    return f'{{"documents": [{", ".join(documents)}]}}'.encode()


@pytest.mark.parametrize(
    ("content_type", "body", "status"),
    [
        ("text/plain", b"hello", 415),
        ("", b"hello", 415),
        ("multipart/form-data", b"hello", 400),
        (FORM, b"hello", 400),
        (FORM, b"--x--\r\n", 400),
        (FORM, part(b'name="files"'), 400),
        (FORM, part(b'filename="a.txt"'), 400),
        (FORM, part(b'name="other"; filename="a.txt"'), 400),
        (FORM + "; charset=idna", part(b'name="\xff.."; filename="a.txt"'), 400),
        (FORM, part(b'name="files"; filename=""', b""), 400),
        ("application/json", b"{", 400),
        ("application/json", b"\xff", 400),
        ("application/json", b"[" * 50_000, 400),
        ("application/json", rows(), 400),
        ("application/json", rows('{"title": 1, "text": "x"}'), 400),
        ("application/json", rows('{"text": "x", "more": 1}'), 400),
        ("application/json", rows('{"text": "\\ud800"}'), 400),
        ("application/json", rows('{"text": " "}'), 400),
        ("application/json", rows('{"id": "../a", "text": "x"}'), 400),
        ("application/json", rows('{"id": "a", "text": "x"}', '{"id": "a", "text": "y"}'), 400),
    ],
)
def test_an_upload_that_makes_no_sense_is_refused_with_a_reason(site, content_type, body, status):
    reply = site.http.post(
        "/v1/indexes/odd/documents", content=body, headers={"content-type": content_type}
    )
    message = refusal(reply, status)
    assert str(site.data) not in message
    refusal(site.http.get("/v1/indexes/odd"), 404)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/indexes/none", 404),
        ("GET", "/v1/indexes/none/documents", 404),
        ("GET", "/v1/indexes/village/documents?limit=0", 400),
        ("GET", "/v1/indexes/village/documents?limit=x", 400),
        ("GET", "/v1/indexes/filled/documents/a.txt?start=-1", 400),
        ("GET", "/v1/indexes/filled/documents/a.txt?start=5&end=4", 400),
        ("GET", "/v1/indexes/filled/documents/", 404),
        ("GET", "/v1/indexes/filled/documents/%00", 400),
        ("GET", "/v1/indexes/filled/documents/%ff%fe", 400),
        ("GET", "/v1/indexes/filled/documents/%ED%A0%80", 400),
        ("GET", "/v1/jobs/job_none", 404),
        ("GET", "/v1/jobs/job_none/events", 404),
        ("DELETE", "/v1/indexes/filled/documents/none", 404),
        ("DELETE", "/v1/indexes/none/documents/a.txt", 404),
        ("PUT", "/v1/indexes/filled", 405),
    ],
)
def test_what_is_not_there_or_makes_no_sense_is_an_error_in_the_format(site, method, path, status):
    if site.http.get("/v1/indexes/filled").status_code == 404:
        site.filled("filled", {"a.txt": "One."})
    refusal(site.http.request(method, path), status)


@pytest.mark.parametrize("name", ["a b", "-a", "ä", "a" * 65, ".."])
def test_a_name_that_no_index_can_have_is_refused(site, name):
    refusal(site.http.post("/v1/indexes", json={"name": name}), 400)
    if name != "..":
        refusal(site.upload({"a.txt": "One."}, quote(name)), 400)


def test_a_range_beyond_the_end_is_cut(site):
    index = site.filled("ranges", {"a.txt": "One."})
    found = site.http.get(f"{index}/documents/a.txt?start=2&end={10**30}").json()
    assert (found["text"], found["start"], found["end"]) == ("e.", 2, 4)
    beyond = site.http.get(f"{index}/documents/a.txt?start={10**30}").json()
    assert (beyond["text"], beyond["start"], beyond["end"]) == ("", 4, 4)


def test_a_watcher_that_leaves_costs_nothing(site):
    site.gate.clear()
    try:
        job = site.upload({"a.txt": "Watched."}, "watched").json()["id"]
        board = site.server.service.library._board
        where = urlsplit(site.server.url)
        with socket.create_connection((where.hostname, where.port)) as client:
            client.sendall(
                f"GET /v1/jobs/{job}/events HTTP/1.1\r\nHost: {where.netloc}\r\n\r\n".encode()
            )
            assert b"200" in head_on(client).split(b"\r\n")[0]
            assert becomes_true(lambda: bool(board._watchers))
        assert becomes_true(lambda: not board._watchers)
    finally:
        site.gate.set()
    assert site.events(job)[-1][0] == "done"


def test_a_job_that_fails_ends_its_stream_with_the_reason(site, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("coinkv.serve.library.perform.build", full)
    name, job = site.events(site.upload({"a.txt": "One."}, "full").json()["id"])[-1]
    assert (name, job.state) == ("failed", "failed")
    assert "No space left" in job.error


def test_of_very_many_documents_a_job_names_the_first():
    job = Job("job_1", "default", "village", "docs", documents=tuple(map(str, range(5000))))
    assert job_facts(job)["documents"] == [str(n) for n in range(MOST_LISTED)]


def test_a_question_before_the_first_index_is_told_to_come_again(site):
    site.gate.clear()
    try:
        job = site.upload({"a.txt": "Soon there."}, "soon").json()["id"]
        body = {"model": "coinrag/soon", "messages": [{"role": "user", "content": "What?"}]}
        reply = site.http.post("/v1/chat/completions", json=body)
        assert "being built" in refusal(reply, 503)
        assert int(reply.headers["retry-after"]) > 0
    finally:
        site.gate.set()
    assert site.events(job)[-1][0] == "done"


def test_a_key_sees_the_indexes_and_jobs_of_its_own_namespace_only(
    backbone, model_folder, tmp_path, monkeypatch
):
    gate = threading.Event()
    gate.set()
    monkeypatch.setattr(
        "coinkv.serve.library.indexing.Indexer", lambda *_: InProcessIndexer(backbone, gate)
    )
    settings = settings_for(tmp_path, model=str(model_folder))
    keys = {n: Keys(settings.data_dir).add(n, namespace=n)[1] for n in ("red", "blue")}
    with running(settings, backbone) as server:
        red, blue = (
            httpx.Client(base_url=server.url, headers={"authorization": f"Bearer {keys[n]}"})
            for n in ("red", "blue")
        )
        parts = [("files", ("a.txt", "One."))]
        job = red.post("/v1/indexes/mine/documents", files=parts).json()["id"]
        assert red.get(f"/v1/jobs/{job}").status_code == 200
        assert blue.get("/v1/indexes").json()["data"] == []
        for path in (
            f"/v1/jobs/{job}",
            f"/v1/jobs/{job}/events",
            "/v1/indexes/mine",
            "/v1/indexes/mine/documents",
            "/v1/indexes/mine/documents/a.txt",
        ):
            refusal(blue.get(path), 404)
        refusal(blue.delete("/v1/indexes/mine"), 404)
        refusal(httpx.get(f"{server.url}/v1/indexes"), 401)
