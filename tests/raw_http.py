"""Replies read from a bare connection whole, in however many pieces they come."""

from __future__ import annotations

import re
import socket


def until(connection: socket.socket, expected: bytes) -> bytes:
    """All that comes until `expected` is in it."""
    answer = b""
    while expected not in answer:
        piece = connection.recv(65_536)
        assert piece, f"the connection was closed behind {answer!r}"
        answer += piece
    return answer


def head_on(connection: socket.socket) -> bytes:
    """The head of a reply, with what of its body came along."""
    return until(connection, b"\r\n\r\n")


def reply_on(connection: socket.socket) -> bytes:
    """One whole reply that tells its length; the connection is then ready for the next."""
    answer = head_on(connection)
    head, end, _ = answer.partition(b"\r\n\r\n")
    told = re.search(rb"\r\ncontent-length: *(\d+)", head, re.IGNORECASE)
    assert told, f"the reply does not tell its length: {head!r}"
    length = len(head + end) + int(told[1])
    while len(answer) < length:
        piece = connection.recv(65_536)
        assert piece, f"the connection was closed behind {answer!r}"
        answer += piece
    assert len(answer) == length, f"more came than one reply: {answer!r}"
    return answer


def until_closed(connection: socket.socket) -> bytes:
    """All that comes until the other side closes the connection."""
    answer = b""
    while piece := connection.recv(65_536):
        answer += piece
    return answer
