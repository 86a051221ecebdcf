"""Sets are read row by row, split in halves that never change, and written as one corpus."""

from __future__ import annotations

import gzip
import json

import pytest

from coinkv.corpus.documents import read_documents
from coinkv.errors import InputError, StorageError
from coinkv.evaluate.dataset import (
    EvalRow,
    EvalSet,
    Passage,
    half,
    read_set,
    require_answers,
    write_passages,
)

BRIDGE = {
    "id": "5a85fc995542996432c5715f",
    "question": "Who built the bridge?",
    "answers": ["Anna Holm", "Holm", "Anna Holm"],
    "passages": [
        {"title": "The bridge", "text": "Anna Holm built it.", "is_supporting": True},
        {"title": "The mill", "text": "It grinds rye.", "is_supporting": False},
        {"title": "", "text": "Trout live here."},
    ],
    "source": "village",
}
ARTICLE = {
    "id": "covidqa_60",
    "title": "Rye",
    "text": "Rye is a grain.\n\nIt is ground in mills.",
    "qas": [
        {"question": "What is rye?", "answers": ["a grain"]},
        {"question": "Where is it ground?", "answers": ["mills", "in mills"]},
    ],
}


def written(tmp_path, *rows, name="set.jsonl"):
    path = tmp_path / name
    content = "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows).encode()
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path


def numbered(count):
    return EvalSet("numbers", tuple(EvalRow(str(n), f"{n}?") for n in range(count)))


def test_a_row_has_its_question_its_distinct_answers_and_its_labelled_passages(tmp_path):
    path = written(tmp_path, BRIDGE)
    assert read_set(path) == EvalSet(
        "set",
        (
            EvalRow(
                "5a85fc995542996432c5715f",
                "Who built the bridge?",
                ("Anna Holm", "Holm"),
                (
                    Passage("The bridge", "Anna Holm built it.", True),
                    Passage("The mill", "It grinds rye.", False),
                    Passage("", "Trout live here.", None),
                ),
            ),
        ),
    )
    assert read_set(str(path)) == read_set(path)


def test_a_document_becomes_a_row_for_every_question_with_the_document_as_its_passage(tmp_path):
    rows = read_set(written(tmp_path, ARTICLE, name="articles.jsonl")).rows
    document = (Passage("Rye", ARTICLE["text"], None),)
    assert rows == (
        EvalRow("covidqa_60#0", "What is rye?", ("a grain",), document, "covidqa_60"),
        EvalRow(
            "covidqa_60#1", "Where is it ground?", ("mills", "in mills"), document, "covidqa_60"
        ),
    )


def test_gzip_byte_order_marks_blank_lines_and_unusual_separators_are_read(tmp_path):
    row = json.dumps({"id": 7, "question": "one\u2028two\u0085three?"}, ensure_ascii=False)
    read = read_set(written(tmp_path, "\ufeff" + row, "", "  ", name="odd.jsonl.gz"))
    assert read == EvalSet("odd", (EvalRow("7", "one\u2028two\u0085three?"),))


def test_questions_alone_are_known_by_their_line_and_refused_only_when_scored(tmp_path):
    path = written(tmp_path, BRIDGE, "", {"question": "When?"}, {"question": "When?"})
    read = read_set(path)
    assert [row.id for row in read.rows[1:]] == ["line 3", "line 4"]
    assert read.rows[1].answers == read.rows[1].passages == ()
    require_answers(EvalSet("first", read.rows[:1]))
    with pytest.raises(InputError, match=r"set\.jsonl, line 3: this question has no answers"):
        require_answers(read)
    with pytest.raises(InputError, match=r"numbers, 0: .*no answers"):
        require_answers(numbered(1))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("[]", "no JSON object"),
        ("null", "no JSON object"),
        ({}, r"its columns \(none\)"),
        ({"query": "A?", "docs": []}, r"its columns \(query, docs\)"),
        ({"question": ""}, "question is empty"),
        ({"question": " \n"}, "question is empty"),
        ({"question": None}, "question is empty"),
        ({"question": 3}, "question is empty or no text"),
        ({"question": "A?", "answers": "yes"}, "answers"),
        ({"question": "A?", "answers": {"text": ["yes"]}}, "answers"),
        ({"question": "A?", "answers": [3]}, "answers"),
        ({"question": "A?", "answers": [" "]}, "answers"),
        ({"question": "A?", "id": ["x"]}, "id"),
        ({"question": "A?", "id": True}, "id"),
        ({"question": "A?", "id": ""}, "id"),
        ({"question": "A?", "passages": "text"}, "passages"),
        ({"question": "A?", "passages": ["text"]}, "passages"),
        ({"question": "A?", "passages": [{"title": "T"}]}, "text is empty"),
        ({"question": "A?", "passages": [{"text": " "}]}, "text is empty"),
        ({"question": "A?", "passages": [{"title": 3, "text": "t"}]}, "title"),
        ({"question": "A?", "passages": [{"text": "t", "is_supporting": 1}]}, "is_supporting"),
        ({"id": "d", "title": "T", "qas": []}, "text is empty"),
        ({"id": "d", "text": "t", "qas": ["A?"]}, "qas"),
        ({"id": "d", "text": "t", "qas": [{"answers": ["x"]}]}, "question is empty"),
    ],
)
def test_what_is_no_row_is_refused_by_file_and_line(tmp_path, row, message):
    path = written(tmp_path, BRIDGE, "", row)
    with pytest.raises(InputError, match=message) as refusal:
        read_set(path)
    assert refusal.value.where == f"{path}, line 3"
    assert "\n" not in str(refusal.value)


def test_an_id_that_came_before_is_refused_with_both_lines(tmp_path):
    path = written(tmp_path, {"id": "covidqa_60#1", "question": "?"}, BRIDGE, ARTICLE)
    with pytest.raises(InputError, match=r"line 3: its id 'covidqa_60#1' is that of .*line 1"):
        read_set(path)
    with pytest.raises(InputError, match=r"line 2: its id '7'"):
        read_set(written(tmp_path, {"id": 7, "question": "?"}, {"id": "7", "question": "?"}))


def test_a_set_without_questions_is_refused(tmp_path):
    for rows in (["", " "], [{**ARTICLE, "qas": []}]):
        with pytest.raises(InputError, match="holds no question"):
            read_set(written(tmp_path, *rows))


def test_what_is_no_file_is_refused_without_asking_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("data/rows.jsonl", "data/rows.json", "rows", "./a/b", "a/b/c", "", ":x", "a\0b"):
        with pytest.raises(InputError, match=r"no such file|no name|embedded null"):
            read_set(name)
    with pytest.raises(InputError, match="no such file"):
        read_set("a/" + "b" * 5000)


def test_files_that_are_damaged_are_named(tmp_path):
    path = written(tmp_path, BRIDGE, name="set.jsonl.gz")
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(InputError, match=r"set\.jsonl\.gz: is damaged gzip"):
        read_set(path)
    path.write_bytes(b"no gzip")
    with pytest.raises(InputError, match="is damaged gzip"):
        read_set(path)
    (tmp_path / "latin.jsonl").write_bytes(b'{"question": "gr\xfc\xdfe?"}')
    with pytest.raises(InputError, match="UTF-8"):
        read_set(tmp_path / "latin.jsonl")


def test_the_halves_are_those_of_the_published_results():
    ids = {
        "5a85fc995542996432c5715f": "test",
        "f06815680bdb11eba7f7acde48001122": "test",
        "4hop1__37608_32392_823060_610794": "dev",
        "7": "test",
        "é": "dev",
    }
    rows = EvalSet("some", tuple(EvalRow(name, "?") for name in ids))
    for which in ("dev", "test"):
        expected = [name for name, half_of in ids.items() if half_of == which]
        assert [row.id for row in half(rows, which).rows] == expected


def test_the_halves_are_apart_and_together_all_in_the_same_order():
    rows = numbered(200)
    dev, test = half(rows, "dev").rows, half(rows, "test").rows
    assert half(rows, "all") == rows
    assert sorted(dev + test, key=lambda row: int(row.id)) == list(rows.rows)
    assert not {*dev} & {*test}
    assert 70 < len(dev) < 130


def test_the_questions_of_a_document_are_in_the_half_of_the_document(tmp_path):
    documents = [
        {"id": f"d{n}", "text": "t", "qas": [{"question": f"{q}?"} for q in range(5)]}
        for n in range(40)
    ]
    read = read_set(written(tmp_path, *documents))
    dev = {row.document for row in half(read, "dev").rows}
    test = {row.document for row in half(read, "test").rows}
    assert dev
    assert test
    assert not dev & test
    plain = EvalSet("plain", tuple(EvalRow(f"d{n}", "?") for n in range(40)))
    assert dev == {row.id for row in half(plain, "dev").rows}


def test_an_unknown_or_empty_half_is_refused():
    with pytest.raises(InputError, match=r"'train'.*dev, test or all"):
        half(numbered(3), "train")
    alone = numbered(1)
    other = "test" if half(numbered(10), "dev").rows[0].id == "0" else "dev"
    with pytest.raises(InputError, match=f"numbers: no row is in the {other} half"):
        half(alone, other)


def test_the_passages_of_a_set_are_one_corpus_without_repetitions(tmp_path):
    other = {"title": "The bridge", "text": "Another bridge\u2028of that name."}
    second = {"question": "?", "passages": [BRIDGE["passages"][0], other]}
    path = tmp_path / "new" / "corpus.jsonl"
    assert write_passages(read_set(written(tmp_path, BRIDGE, second, ARTICLE)), path) == 5
    documents = read_documents(path)
    assert [(document.title, document.text) for document in documents] == [
        ("The bridge", "Anna Holm built it."),
        ("The mill", "It grinds rye."),
        ("", "Trout live here."),
        ("The bridge", "Another bridge\u2028of that name."),
        ("Rye", ARTICLE["text"]),
    ]
    assert len({document.key for document in documents}) == 5
    assert [entry.name for entry in path.parent.iterdir()] == ["corpus.jsonl"]
    assert write_passages(read_set(written(tmp_path, BRIDGE)), str(path)) == 3
    assert len(read_documents(path)) == 3


def test_a_corpus_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    bridge = read_set(written(tmp_path, BRIDGE))
    path = tmp_path / "corpus.jsonl"
    path.write_text("old")

    def full(file, content):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr("coinkv.store.atomic.os.write", full)
        with pytest.raises(StorageError, match=r"corpus\.jsonl: .*No space left"):
            write_passages(bridge, path)
    assert path.read_text() == "old"
    with pytest.raises(InputError, match="no corpus"):
        write_passages(numbered(2), path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"question": "a\udcff?"}, "in its question: character 2"),
        ({"answers": ["b", "\ud800"]}, "in its answers"),
        ({"passages": [{"title": "", "text": "a\ud800"}]}, "in a passage"),
        ({"passages": [{"title": "a\ud800", "text": "a"}]}, "in a passage"),
        ({"id": "\udcff"}, "in its id"),
    ],
)
def test_half_a_surrogate_pair_is_refused_by_file_and_line(tmp_path, change, message):
    path = written(tmp_path, BRIDGE, {**BRIDGE, "id": "x", **change})
    with pytest.raises(InputError, match=rf"set\.jsonl, line 2: no Unicode text {message}"):
        read_set(path)
