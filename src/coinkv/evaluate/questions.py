"""Questions from a JSONL file: rows that need only a `question`."""

from __future__ import annotations

import json
from pathlib import Path

from coinkv.errors import InputError


def read_questions(path: Path, limit: int | None = None) -> list[str]:
    """The questions of a JSONL file, in order.

    Args:
        path: one JSON object a line, each with a `question`; more fields are ignored.
        limit: at most so many.

    Raises:
        InputError: no such file, a line that is no JSON object with a question, or no question.
    """
    if limit is not None and limit < 1:
        raise InputError(f"limit is {limit}", hint="use 1 or more")
    try:
        # not splitlines: JSON strings may hold U+2028 and its like
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except FileNotFoundError as error:
        raise InputError("no such file", where=path, hint="name a JSONL file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read as UTF-8 text ({error})", where=path) from error
    questions = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            question = json.loads(line)["question"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise InputError(
                'this line is not {"question": ...}', where=f"{path}, line {number}"
            ) from error
        if not isinstance(question, str) or not question.strip():
            raise InputError("this question is empty or no text", where=f"{path}, line {number}")
        questions.append(question)
    if not questions:
        raise InputError("the file holds no question", where=path)
    return questions[:limit]
