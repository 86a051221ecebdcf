"""Questions from a JSONL file: rows that need only a `question`."""

from __future__ import annotations

from pathlib import Path

from coinkv.errors import InputError
from coinkv.evaluate.dataset import json_lines


def read_questions(path: Path, limit: int | None = None) -> list[str]:
    """The questions of a JSONL file (may be gzipped), in order, repeated ones too.

    Args:
        path: one JSON object a line, each with a `question`; more fields are ignored.
        limit: at most so many.

    Raises:
        InputError: no such file, a line that is no JSON object with a question, or no question.
    """
    if limit is not None and limit < 1:
        raise InputError(f"limit is {limit}", hint="use 1 or more")
    questions = []
    for where, fields in json_lines(path):
        question = fields.get("question")
        if not isinstance(question, str) or not question.strip():
            raise InputError('this line is not {"question": "..."}', where=where)
        questions.append(question)
    if not questions:
        raise InputError("the file holds no question", where=path)
    return questions[:limit]
