"""Prompts as people give them: words, files, standard input, messages of a chat, rows of a file."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coinkv.errors import InputError

Messages = list[dict[str, str]]

STDIN = Path("-")
_MESSAGES_HINT = 'give a list such as [{"role": "user", "content": "Hello"}]'
_ROW_HINT = 'give each line a "prompt" (a text) or "messages" (a list of role and content)'


def asked(
    words: str | None,
    files: Sequence[Path],
    messages: Path | None,
    system: str | None,
    *,
    chat: bool,
) -> str | Messages:
    """The prompt that a command line means: a text, or messages of a chat.

    The files' texts come first, then the words, a blank line between; of nothing at all, standard
    input is read. The text is continued as it is, or is the user's last message where `chat`,
    `system` or `messages` says so.

    Args:
        words: as typed; `-` stands for standard input.
        files: texts; `-` stands for standard input.
        messages: a JSON file of earlier messages.
        system: a system message to begin with.
        chat: make the text a message.

    Raises:
        InputError: nothing is given, or something cannot be read.
    """
    text = _joined(words, files, wanted=messages is None)
    if not (chat or messages or system is not None):
        return text
    said = [] if messages is None else _messages_in(messages)
    if system is not None:
        if said and said[0]["role"] == "system":
            raise InputError(
                "these messages begin with a system message",
                where=messages,
                hint="leave out --system",
            )
        said.insert(0, {"role": "system", "content": system})
    return [*said, *as_message(text)] if text else said


def rows(path: Path, *, chat: bool, limit: int | None = None) -> list[str | Messages]:
    """Prompts of a file: JSON Lines (`.jsonl`, also `.gz`), or a text of one prompt a line.

    Args:
        path: the file.
        chat: make every text a user's message.
        limit: at most so many.

    Raises:
        InputError: it cannot be read, a row holds no prompt, or there is none.
    """
    if path.suffix in (".jsonl", ".gz"):
        from coinkv.evaluate.dataset import json_lines

        found = [_row(fields, where) for where, fields in json_lines(path)]
    else:
        found = [line for line in text_of(path).splitlines() if line.strip()]
    if not found:
        raise InputError("the file holds no prompt", where=path, hint=_ROW_HINT)
    return [as_message(each) if chat and isinstance(each, str) else each for each in found[:limit]]


def as_message(text: str) -> Messages:
    """A chat of one message, the user's."""
    return [{"role": "user", "content": text}]


def text_of(path: Path) -> str:
    """A file's text, or standard input's, without line breaks around it.

    Raises:
        InputError: there is no such file, or it holds no UTF-8 text.
    """
    where = "standard input" if path == STDIN else path
    try:
        raw = sys.stdin.buffer.read() if path == STDIN else path.read_bytes()
        text = raw.decode("utf-8-sig").replace("\r\n", "\n").strip("\n")
    except FileNotFoundError as error:
        raise InputError("no such file", where=where, hint="check the path") from error
    except UnicodeDecodeError as error:
        raise InputError(
            f"is not UTF-8 (byte {error.start})", where=where, hint="convert it to UTF-8"
        ) from error
    except OSError as error:
        raise InputError(
            f"cannot be read ({error.strerror or error})", where=where, hint="name a text file"
        ) from error
    if not text.strip():
        raise InputError("is empty", where=where, hint="give it some text")
    return text


def _joined(words: str | None, files: Sequence[Path], *, wanted: bool) -> str:
    sources = [*files, STDIN] if words == "-" else [*files]
    if sources.count(STDIN) > 1:
        raise InputError("standard input is asked for twice", hint="give - once")
    if words is None and not sources and wanted:
        if sys.stdin.isatty():
            raise InputError(
                "there is no prompt", hint="give PROMPT, --file or --messages, or pipe a text in"
            )
        sources = [STDIN]
    texts = [text_of(source) for source in sources]
    if words is not None and words != "-":
        if not words.strip():
            raise InputError("the prompt is empty", hint="give it some text")
        texts.append(words)
    return "\n\n".join(texts)


def _messages_in(path: Path) -> Messages:
    text = text_of(path)
    try:
        return _messages(json.loads(text), str(path))
    except json.JSONDecodeError as error:
        raise InputError(
            f"is no JSON ({error.msg})", where=f"{path}, line {error.lineno}", hint=_MESSAGES_HINT
        ) from error
    except RecursionError as error:
        raise InputError("is no JSON", where=path, hint=_MESSAGES_HINT) from error


def _messages(given: Any, where: str) -> Messages:
    if not isinstance(given, list) or not given:
        raise InputError("these are no messages", where=where, hint=_MESSAGES_HINT)
    for number, each in enumerate(given, 1):
        fields = each if isinstance(each, dict) else {}
        if not all(isinstance(fields.get(name), str) for name in ("role", "content")):
            raise InputError(
                f"message {number} lacks role or content", where=where, hint=_MESSAGES_HINT
            )
    return given


def _row(fields: Mapping[str, Any], where: str) -> str | Messages:
    if "messages" in fields:
        return _messages(fields["messages"], where)
    prompt = fields.get("prompt")
    if not isinstance(prompt, str) or not prompt.strip():
        raise InputError("this row holds no prompt", where=where, hint=_ROW_HINT)
    return prompt
