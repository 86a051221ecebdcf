"""Questions are read row by row; whatever is no question is refused by its line."""

from __future__ import annotations

import json

import pytest

from coinkv.errors import InputError
from coinkv.evaluate.questions import read_questions


def written(tmp_path, content):
    path = tmp_path / "questions.jsonl"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_rows_need_only_a_question_and_come_in_order(tmp_path):
    rows = [{"question": "B?", "answers": ["x"]}, {"question": "A?"}, {"question": "B?"}]
    path = written(tmp_path, "\n\n".join(map(json.dumps, rows)) + "\n")
    assert read_questions(path) == ["B?", "A?", "B?"]


def test_a_limit_takes_the_first(tmp_path):
    path = written(tmp_path, "\n".join(json.dumps({"question": f"{n}?"}) for n in range(9)))
    assert read_questions(path, 2) == ["0?", "1?"]
    assert len(read_questions(path, 100)) == 9


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_below_one_is_refused(tmp_path, limit):
    path = written(tmp_path, '{"question": "A?"}')
    with pytest.raises(InputError, match=f"limit is {limit}"):
        read_questions(path, limit)


def test_windows_files_and_unusual_separators_inside_a_question_are_read(tmp_path):
    row = json.dumps({"question": "one\u2028two\u0085three?"}, ensure_ascii=False)
    path = written(tmp_path, f"\ufeff{row}\r\n{row}\r\n")
    assert read_questions(path) == ["one\u2028two\u0085three?"] * 2


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "3",
        "null",
        '"question"',
        "[]",
        '["question"]',
        "{}",
        '{"question": null}',
        '{"question": 3}',
        '{"question": ["A?"]}',
        '{"question": "  "}',
        "[" * 100_000,
    ],
)
def test_a_line_that_is_no_question_is_named(tmp_path, line):
    path = written(tmp_path, '{"question": "A?"}\n\n' + line)
    with pytest.raises(InputError, match="line 3"):
        read_questions(path)


@pytest.mark.parametrize("content", ["", "\n \n"])
def test_a_file_without_questions_is_refused(tmp_path, content):
    with pytest.raises(InputError, match="holds no question"):
        read_questions(written(tmp_path, content))


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        read_questions(tmp_path / "none.jsonl")
    with pytest.raises(InputError, match="UTF-8"):
        read_questions(tmp_path)
    with pytest.raises(InputError, match="UTF-8"):
        read_questions(written(tmp_path, b'{"question": "gr\xfc\xdfe?"}'))
