"""What an attacker, a broken client or a fuzzer sends: bytes for a socket, from a seed."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

CLOSING = b"host: localhost\r\nconnection: close\r\n"
POSTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/indexes")
DOCUMENTS = "/v1/indexes/hostile/documents"
PLACES = (
    *POSTS,
    DOCUMENTS,
    "/",
    "/assets/x.js",
    "/docs",
    "/openapi.json",
    "/healthz",
    "/readyz",
    "/metrics",
    "/v1/models",
    "/v1/models/{}",
    "/v1/methods",
    "/v1/status",
    "/v1/store",
    "/v1/indexes/{}",
    "/v1/indexes/{}/documents",
    "/v1/indexes/index/documents/{}",
    "/v1/jobs/{}",
    "/v1/jobs/{}/events",
    "/nowhere/{}",
)
METHODS = ("HEAD", "OPTIONS", "TRACE", "PUT", "PATCH", "DELETE", "GET", "POST", "QUERY", "x")

DEEP = 10_000
TEXTS = (
    "",
    " ",
    "\x00",
    "\n" * 300,
    "‮txt.exe⁦",
    "a" * 20_000,
    "😀" * 2_000,
    "́" * 5_000,
    "�\ufffe￿",
    "../../../../etc/passwd",
    "'; DROP TABLE documents; --",
    "{{7*7}}${jndi:ldap://x}<script>",
    "%s%n%x",
    "<|im_start|>system<|im_end|>",
    "NaN",
)
VALUES: tuple[Any, ...] = (
    *TEXTS,
    None,
    True,
    False,
    0,
    -1,
    1.5,
    1e308,
    -1e308,
    2**31,
    2**63,
    -(2**63) - 1,
    10**400,
    [],
    {},
    [[]],
    [None],
    [{}] * 50,
    {"a": {"b": {"c": []}}},
    ["a"] * 3_000,
    [0] * 3_000,
)
RAW_VALUES = (
    b"NaN",
    b"-Infinity",
    b"1e999999",
    b"9" * 5_000,
    b"[" * DEEP + b"]" * DEEP,
    b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    b"[" * DEEP,
    rb'"\ud800"',
    rb'"\udc00\ud800"',
    rb'"\u0000"',
    b'"\xc0\xaf"',
    b'"\xed\xa0\x80"',
    b'"\xff\xfe"',
    b'"a\x00b"',
    b'"unfinished',
    b"'single'",
    b"0x10",
    b"01",
    b"tru",
    b"",
)
TYPES = (
    b"text/plain",
    b"application/x-www-form-urlencoded",
    b"multipart/form-data",
    b"multipart/form-data; boundary=" + b"b" * 500,
    b"application/json; charset=utf-16",
    b"application/json; charset=nonsense",
    b"application/xml",
    b"json",
    b"",
    b"\xff\xfe",
    b"a/b; " + b"c=d; " * 500,
)
PARTS = (
    "%00",
    "%0d%0aset-cookie:%20a=b",
    "..%2f..%2f..%2fetc%2fpasswd",
    "../../../../etc/passwd",
    "%c0%ae%c0%ae",
    "%ff",
    "%ed%a0%80",
    "%e2%80%ae",
    "a" * 300,
    "a" * 9_000,
    "%",
    "%zz",
    "coinrag/%2e%2e",
    "con",
    "%F0%9F%98%80",
    ";a=b",
    "*",
)
QUERIES = (
    "start=-1&end=1",
    "start=1e9",
    "start=9999999999999999999999&end=0",
    "limit=0&after=%00",
    "limit=-5",
    "limit=" + "9" * 4_000,
    "after=%ff&limit=a",
    "&&&=&",
    "a=" + "b" * 9_000,
    "limit[]=1",
    "?" * 100,
)
HEADS = (
    b"GET / HTTP/1.1\r\n\r\n",
    b"GET / HTTP/9.9\r\nhost: localhost\r\nconnection: close\r\n\r\n",
    b"GET /\r\n\r\n",
    b"GET  / HTTP/1.1\r\nhost: localhost\r\n\r\n",
    b"GET http://evil.example/ HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\n\r\n",
    b"CONNECT evil.example:443 HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
    b"GET / HTTP/1.1\r\nhost: localhost\r\nhost: evil.example\r\n\r\n",
    b"GET / HTTP/1.1\r\nhost : localhost\r\n\r\n",
    b"GET / HTTP/1.1\r\nhost: localhost\r\n x: folded\r\nconnection: close\r\n\r\n",
    b"GET / HTTP/1.1\r\nhost: localhost\r\n: nameless\r\n\r\n",
    b"GET / HTTP/1.1\r\nhost: localhost\r\nx: a\x00b\r\n\r\n",
    b"GET / HTTP/1.1\nhost: localhost\nconnection: close\n\n",
    b"GET / HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\n\r\n",
    b"GET / HTTP/1.1\r\nhost: localhost\r\n" + b"x: y\r\n" * 1_000 + b"connection: close\r\n\r\n",
    b"GET / HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * 60_000 + b"\r\n\r\n",
    b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n",
    b"GET / HTTP/1.1\r\nhost: localhost\r\nrange: bytes=" + b"0-," * 2_000 + b"\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 300,
    b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
    b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade, close\r\nupgrade: h2c\r\n\r\n",
)
LENGTHS = (
    b"content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    b"transfer-encoding: chunked\r\ncontent-length: 40\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n",
    b"content-length: 4\r\ncontent-length: 5\r\n\r\n12345",
    b"content-length: 4, 5\r\n\r\n12345",
    b"content-length: +4\r\n\r\n1234",
    b"content-length: -4\r\n\r\n",
    b"content-length: 4a\r\n\r\n1234",
    b"content-length: 99999999999999999999999\r\n\r\n",
    b"content-length: 999999999\r\n\r\n{",
    b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    b"transfer-encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
    b"transfer-encoding: chunked\r\n\r\n-1\r\n\r\n",
    b"transfer-encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
    b"transfer-encoding: chunked\r\n\r\n5;" + b"e" * 30_000 + b"\r\n12345\r\n0\r\n\r\n",
    b"transfer-encoding: chunked\r\n\r\n5\r\n1234567\r\n0\r\n\r\n",
    b"transfer-encoding: chunked\r\n\r\n0\r\ntrailer: x\r\nhost: evil.example\r\n\r\n",
    b"expect: 100-continue\r\ncontent-length: 999999999\r\n\r\n",
    b"expect: nonsense\r\ncontent-length: 2\r\n\r\n{}",
)


@dataclass(frozen=True)
class Attack:
    """Bytes for a connection, and when to leave it.

    Attributes:
        kind: for messages of tests.
        sent: what is sent.
        leaves_after: bytes of the answer after which the client leaves; None reads to the end, 0
            does not wait for any.
        drip_seconds: a byte is sent, then as long waited; 0 sends all at once.
    """

    kind: str
    sent: bytes
    leaves_after: int | None = None
    drip_seconds: float = 0.0


def attacks(seed: int, model: str, embedder: str, count: int) -> Iterator[Attack]:
    """As many hostile inputs, of every kind in turn; the same for the same seed."""
    rng = random.Random(seed)
    bodies = _bodies(model, embedder)
    makers = (
        _wrong_values,
        _wrong_values,
        _raw_values,
        _truncated,
        _mutated,
        _wrong_types,
        _multipart,
        _heads,
        _lengths,
        _places,
        _places,
        _pipelined,
        _leaving,
        _leaving,
        _large,
    )
    for number in range(count):
        maker = makers[number % len(makers)]
        yield maker(rng, *rng.choice(bodies))


def slow_attacks(model: str, seconds: float) -> Iterator[Attack]:
    """Connections that say a byte now and then, in the head and in the body."""
    head = b"POST /v1/completions HTTP/1.1\r\n" + CLOSING
    body = json.dumps({"model": model, "prompt": "a"}).encode()
    whole = head + b"content-length: %d\r\n\r\n" % len(body)
    for begun, rest in ((b"", whole), (b"GET", b"x" * 100), (whole, body), (whole[:-2], body)):
        yield Attack("slow", begun + rest[: int(seconds / 0.05)], drip_seconds=0.05)


def _bodies(model: str, embedder: str) -> list[tuple[str, dict[str, Any]]]:
    messages = [{"role": "user", "content": "Who built the bridge?"}]
    chat = {"model": model, "messages": messages, "max_tokens": 3, "temperature": 0, "n": 1}
    asked = {"model": "coinrag/index", "messages": messages, "max_tokens": 3, "k_chunks": 2}
    asked |= {"method": "coinrag", "options": {}, "condense": "off", "k_nuggets": 3}
    completion = {"model": model, "prompt": "The bridge", "max_tokens": 3, "stop": ["x"]}
    completion |= {"logprobs": 1, "seed": 5, "top_p": 0.9, "echo": True}
    return [
        ("/v1/chat/completions", chat),
        ("/v1/chat/completions", asked),
        ("/v1/chat/completions", {**chat, "stream": True, "logprobs": True, "top_logprobs": 2}),
        ("/v1/completions", completion),
        ("/v1/embeddings", {"model": embedder, "input": ["a", "b"], "encoding_format": "float"}),
        ("/v1/indexes", {"name": "hostile"}),
        (DOCUMENTS, {"documents": [{"id": "a", "title": "A", "text": "Text."}]}),
    ]


def _post(path: str, body: bytes, content_type: bytes = b"application/json") -> bytes:
    fields = b"content-type: %b\r\ncontent-length: %d\r\n\r\n" % (content_type, len(body))
    return b"POST %b HTTP/1.1\r\n" % path.encode() + CLOSING + fields + body


def _wrong_values(rng: random.Random, path: str, body: dict[str, Any]) -> Attack:
    """One or two fields, or ones that do not exist, at values that they cannot have."""
    changed = json.loads(json.dumps(body))
    for _ in range(rng.randint(1, 2)):
        name = rng.choice([*body, "no_such_field", "tools", "stream_options", "deadline_seconds"])
        target = changed
        if name == "messages" and isinstance(changed.get("messages"), list) and rng.random() < 0.7:
            target, name = changed["messages"][0], rng.choice(["role", "content", "name"])
        target[name] = rng.choice(VALUES)
    return Attack("wrong values", _post(path, json.dumps(changed).encode()))


def _raw_values(rng: random.Random, path: str, body: dict[str, Any]) -> Attack:
    """A value, or the whole body, that is no JSON, or JSON of a kind that breaks parsers."""
    raw = rng.choice(RAW_VALUES)
    if rng.random() < 0.3:
        return Attack("raw body", _post(path, raw))
    name = rng.choice(list(body))
    marked = json.dumps({**body, name: "MARK"}).encode()
    return Attack("raw value", _post(path, marked.replace(b'"MARK"', raw)))


def _truncated(rng: random.Random, path: str, body: dict[str, Any]) -> Attack:
    whole = json.dumps(body).encode()
    return Attack("truncated", _post(path, whole[: rng.randrange(len(whole))]))


def _mutated(rng: random.Random, path: str, body: dict[str, Any]) -> Attack:
    whole = bytearray(json.dumps(body).encode())
    for _ in range(rng.randint(1, 8)):
        whole[rng.randrange(len(whole))] = rng.randrange(256)
    return Attack("mutated", _post(path, bytes(whole)))


def _wrong_types(rng: random.Random, path: str, body: dict[str, Any]) -> Attack:
    encoding = rng.choice(["utf-8", "utf-16", "utf-32", "utf-8-sig"])
    return Attack("type", _post(path, json.dumps(body).encode(encoding), rng.choice(TYPES)))


def _multipart(rng: random.Random, path: str, body: dict[str, Any]) -> Attack:
    """Uploads whose parts, names and boundaries are not what they should be."""
    name = rng.choice(
        ['"files"', "files", '"files', '"x"', '""', '"\xff"', '"' + "f" * 9_000 + '"']
    )
    file = rng.choice(
        ['"../../a.txt"', '"/etc/passwd"', '"a\x00.txt"', '""', '"' + "n" * 9_000 + '"']
    )
    part = f"content-disposition: form-data; name={name}; filename={file}\r\n".encode("latin-1")
    part += rng.choice([b"", b"content-type: \xff\r\n", b"x: " + b"y" * 9_000 + b"\r\n"]) + b"\r\n"
    content = rng.choice([b"", b"\x00" * 100, b"--b--", b"PK\x03\x04", b"%PDF-1.7", b"text"])
    sent = b"--b\r\n" + part + content + rng.choice([b"\r\n--b--\r\n", b"\r\n--b", b"", b"--B--"])
    if rng.random() < 0.2:
        sent = sent * rng.choice([2, 500])
    boundary = rng.choice([b"; boundary=b", b"; boundary=b", b"; boundary=", b"", b'; boundary="'])
    return Attack("multipart", _post(DOCUMENTS, sent, b"multipart/form-data" + boundary))


def _heads(rng: random.Random, path: str, body: dict[str, Any]) -> Attack:
    if rng.random() < 0.2:
        return Attack("random bytes", rng.randbytes(rng.randint(1, 3_000)))
    return Attack("head", rng.choice(HEADS))


def _lengths(rng: random.Random, path: str, body: dict[str, Any]) -> Attack:
    head = b"POST %b HTTP/1.1\r\ncontent-type: application/json\r\n" % path.encode()
    return Attack("length", head + CLOSING + rng.choice(LENGTHS))


def _places(rng: random.Random, path: str, body: dict[str, Any]) -> Attack:
    """Any method at any address, with parts and queries that mean nothing."""
    place = rng.choice(PLACES).replace("{}", rng.choice(PARTS))
    if rng.random() < 0.4:
        place += "?" + rng.choice(QUERIES)
    method = rng.choice(METHODS)
    return Attack("place", f"{method} {place} HTTP/1.1\r\n".encode() + CLOSING + b"\r\n")


def _pipelined(rng: random.Random, path: str, body: dict[str, Any]) -> Attack:
    """Many requests at once, the last of them sense, nonsense or half of one."""
    once = _post(path, json.dumps(body).encode()).replace(b"connection: close\r\n", b"")
    last = rng.choice([_post(path, b"{}"), once[: rng.randrange(1, len(once))], rng.randbytes(50)])
    return Attack("pipelined", once * rng.randint(1, 6) + last)


def _leaving(rng: random.Random, path: str, body: dict[str, Any]) -> Attack:
    """A client that leaves in the middle of its request, or of the answer."""
    whole = _post(path, json.dumps({**body, "max_tokens": 60}).encode())
    if rng.random() < 0.5:
        return Attack("left asking", whole[: rng.randrange(len(whole))], leaves_after=0)
    return Attack("left listening", whole, leaves_after=rng.choice([0, 0, 1, 200, 1_000, 3_000]))


def _large(rng: random.Random, path: str, body: dict[str, Any]) -> Attack:
    size = rng.choice([150_000, 250_000, 1_000_000])
    kind = rng.random()
    if kind < 0.4:
        return Attack("large", _post(path, b'{"a": "' + b"a" * size + b'"}'))
    if kind < 0.7:
        chunk = b"%x\r\n" % size + b"a" * size + b"\r\n0\r\n\r\n"
        head = b"POST %b HTTP/1.1\r\ncontent-type: application/json\r\n" % path.encode() + CLOSING
        return Attack("large chunk", head + b"transfer-encoding: chunked\r\n\r\n" + chunk)
    if kind < 0.85:
        fields = {f"{number:x}": 0 for number in range(size // 12)}
        return Attack("large object", _post(path, json.dumps({**body, **fields}).encode()))
    return Attack("large list", _post(path, b"[" + b"0," * (size // 2) + b"0]"))
