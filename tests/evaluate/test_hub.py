"""Sets of others: loaded from folders as from the hub, and read like our own."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from coinkv.errors import InputError
from coinkv.evaluate.dataset import Passage, half, read_set
from coinkv.evaluate.hub import uniform

datasets = pytest.importorskip("datasets")

OWN = {
    "id": "own-1",
    "question": "Who built the bridge?",
    "answers": ["Anna Holm"],
    "passages": [
        {"title": "The bridge", "text": "Anna Holm built it.", "is_supporting": True},
        {"title": "The mill", "text": "It grinds rye.", "is_supporting": None},
    ],
}
LONGBENCH = {
    "input": "Who built the bridge?",
    "context": "Passage 1:\nThe bridge \nAnna Holm built it.\n\nA sign:\nPassage 7:\nno bikes\n\n"
    "Passage 2:\nThe mill\nIt grinds rye. Passage 3: of the guide says so.\n\n\nPassage 3:\nFish",
    "answers": ["Anna Holm", "Holm"],
    "length": 30,
    "dataset": "hotpotqa",
    "language": "en",
    "all_classes": None,
    "_id": "longbench-1",
}
HOTPOTQA = {
    "id": "hotpot-1",
    "question": "Who built the bridge?",
    "answer": "Anna Holm",
    "type": "bridge",
    "level": "hard",
    "supporting_facts": {"title": ["The bridge", "The bridge"], "sent_id": [0, 1]},
    "context": {
        "title": ["The bridge", "The mill", "Empty"],
        "sentences": [["Anna Holm built it.", " It has 3 arches."], ["It grinds rye."], []],
    },
}
PAIRS = {
    "_id": "wiki-1",
    "question": "Who built the bridge?",
    "answer": "Anna Holm",
    "supporting_facts": [["The bridge", 0]],
    "context": [
        ["The bridge", ["Anna Holm built it.", "It has 3 arches."]],
        ["The mill", ["It grinds rye."]],
        ["Empty", [" "]],
    ],
}
MUSIQUE = {
    "id": "2hop__1_2",
    "question": "Who built the bridge?",
    "answer": "Anna Holm",
    "answer_aliases": ["Holm", "Anna Holm"],
    "answerable": True,
    "paragraphs": [
        {
            "idx": 0,
            "title": "The bridge",
            "paragraph_text": "Anna Holm built it.",
            "is_supporting": True,
        },
        {
            "idx": 1,
            "title": "The mill",
            "paragraph_text": "It grinds rye.",
            "is_supporting": False,
        },
    ],
}
GOLD = (
    Passage("The bridge", "Anna Holm built it. It has 3 arches.", True),
    Passage("The mill", "It grinds rye.", False),
)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Nothing is read from or left in the cache of the user, and no network is asked."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def folder_of(tmp_path, *rows, name="set", split="test", kind="jsonl"):
    folder = tmp_path / name
    folder.mkdir(exist_ok=True)
    path = folder / f"{split}.{kind}"
    if kind == "parquet":
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)
    else:
        path.write_text("\n".join(map(json.dumps, rows)))
    return folder


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
@pytest.mark.parametrize("row", [OWN, LONGBENCH, HOTPOTQA, MUSIQUE])
def test_a_row_is_the_same_from_a_folder_and_from_a_file(tmp_path, row, kind):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row))
    (from_file,) = read_set(path).rows
    (from_folder,) = read_set(folder_of(tmp_path, row, kind=kind)).rows
    assert from_folder == from_file
    assert from_file.question == "Who built the bridge?"
    assert from_file.answers[0] == "Anna Holm"
    assert from_folder.where.endswith("set, row 1")


def test_our_own_rows_are_read_as_from_a_file(tmp_path):
    article = {
        "id": "d",
        "title": "Rye",
        "text": "A grain.",
        "qas": [{"question": "What?", "answers": ["a grain"]}, {"question": "Who?"}],
    }
    rows = read_set(folder_of(tmp_path, OWN, article)).rows
    assert [row.id for row in rows] == ["own-1", "d#0", "d#1"]
    assert rows[0].passages[1] == Passage("The mill", "It grinds rye.", None)
    assert rows[1].passages == (Passage("Rye", "A grain.", None),)
    assert (rows[1].answers, rows[2].answers) == (("a grain",), ())


def test_the_blocks_of_longbench_are_passages_with_titles(tmp_path):
    (row,) = read_set(folder_of(tmp_path, LONGBENCH)).rows
    assert (row.id, row.answers) == ("longbench-1", ("Anna Holm", "Holm"))
    assert row.passages == (
        Passage("The bridge", "Anna Holm built it.\n\nA sign:\nPassage 7:\nno bikes"),
        Passage("The mill", "It grinds rye. Passage 3: of the guide says so."),
        Passage("", "Fish"),
    )


def test_a_context_without_blocks_is_one_passage():
    row = uniform({**LONGBENCH, "context": "Anna Holm\nbuilt Passage 1: it."}, "here")
    assert row["passages"] == [
        {"title": "", "text": "Anna Holm\nbuilt Passage 1: it.", "is_supporting": None}
    ]


def test_articles_with_supporting_facts_are_gold_and_empty_ones_left_out(tmp_path):
    (row,) = read_set(folder_of(tmp_path, HOTPOTQA, kind="parquet")).rows
    assert (row.id, row.answers, row.passages) == ("hotpot-1", ("Anna Holm",), GOLD)


def test_articles_are_read_as_pairs_and_as_objects_too(tmp_path):
    objects = [{"title": title, "sentences": text} for title, text in PAIRS["context"]]
    contents = [{"title": title, "content": text} for title, text in PAIRS["context"]]
    path = tmp_path / "rows.jsonl"
    for context in (PAIRS["context"], objects, contents):
        path.write_text(json.dumps({**PAIRS, "context": context}))
        (row,) = read_set(path).rows
        assert (row.id, row.answers, row.passages) == ("wiki-1", ("Anna Holm",), GOLD)
    (row,) = read_set(folder_of(tmp_path, PAIRS)).rows
    assert (row.id, row.passages) == ("wiki-1", GOLD)


def test_a_hidden_answer_is_none_and_without_facts_nothing_is_labelled():
    hidden = {**HOTPOTQA, "answer": None, "supporting_facts": {"title": [], "sent_id": []}}
    row = uniform(hidden, "here")
    assert row["answers"] == []
    assert {passage["is_supporting"] for passage in row["passages"]} == {None}


def test_paragraphs_of_musique_keep_their_labels_and_aliases_are_answers(tmp_path):
    (row,) = read_set(folder_of(tmp_path, MUSIQUE, kind="parquet")).rows
    assert (row.id, row.answers) == ("2hop__1_2", ("Anna Holm", "Holm"))
    assert row.passages == (Passage("The bridge", "Anna Holm built it.", True), GOLD[1])


def test_one_split_is_taken_and_of_several_one_must_be_named(tmp_path):
    folder = folder_of(tmp_path, OWN, split="validation")
    assert read_set(folder).name == str(folder)
    folder_of(tmp_path, {**OWN, "id": "own-2"}, {**OWN, "id": "own-3"}, split="train")
    with pytest.raises(InputError, match=r"splits train, validation; name one, like .*set::valid"):
        read_set(folder)
    assert [row.id for row in read_set(f"{folder}::train").rows] == ["own-2", "own-3"]
    named = read_set(f"{folder}:default:train[1:]")
    assert [row.id for row in named.rows] == ["own-3"]
    assert half(named, "all").name == f"{folder}:default:train[1:]"


@pytest.mark.parametrize(
    ("rest", "message"), [("::nope", "Unknown split"), (":nope:test", "BuilderConfig 'nope'")]
)
def test_an_unknown_split_or_config_is_named_in_one_line(tmp_path, rest, message):
    folder = folder_of(tmp_path, OWN)
    with pytest.raises(InputError, match=message) as refusal:
        read_set(f"{folder}{rest}")
    assert "\n" not in str(refusal.value)


def test_where_a_config_must_be_chosen_they_are_named(tmp_path):
    folder = folder_of(tmp_path, OWN)
    configs = [{"config_name": name, "data_files": "test.jsonl"} for name in ("rye", "oats")]
    (folder / "README.md").write_text(f"---\nconfigs: {json.dumps(configs)}\n---\n")
    with pytest.raises(InputError, match=r"Config name is missing.*'rye', 'oats'"):
        read_set(folder)
    assert [row.id for row in read_set(f"{folder}:oats").rows] == ["own-1"]


def test_folders_that_hold_no_set_or_a_damaged_one_are_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"cannot be loaded .*give a folder of JSONL or Parquet"):
        read_set(tmp_path / "empty")
    folder = folder_of(tmp_path, OWN, name="damaged")
    (folder / "test.jsonl").write_text('{"question": "A?"}\n{"question":\n')
    with pytest.raises(InputError, match="JSON parse error"):
        read_set(folder)


def test_unknown_columns_are_named(tmp_path):
    folder = folder_of(tmp_path, {"prompt": "A?", "gold": "x"})
    with pytest.raises(InputError, match=r"set, row 1: its columns \(prompt, gold\)"):
        read_set(folder)


@pytest.mark.parametrize(
    "row",
    [
        {"question": "A?", "context": "text", "answers": {"text": ["x"]}},
        {**LONGBENCH, "context": ["text"]},
        {**HOTPOTQA, "context": {"title": ["T"], "words": [["x"]]}},
        {**HOTPOTQA, "context": {"title": ["T"], "sentences": []}},
        {**HOTPOTQA, "context": ["text"]},
        {**HOTPOTQA, "supporting_facts": {"sent_id": [0]}},
        {**MUSIQUE, "paragraphs": [{"title": "T", "text": "t"}]},
        {**MUSIQUE, "paragraphs": None},
    ],
)
def test_columns_that_hold_something_else_are_refused_by_their_row(row):
    with pytest.raises(InputError, match=r"here: its columns \(.*question|input"):
        uniform(row, "here")


def test_rows_that_are_wrong_are_refused_by_their_number(tmp_path):
    with pytest.raises(InputError, match="row 2: its question is empty"):
        read_set(folder_of(tmp_path, OWN, {**OWN, "id": "2", "question": " "}))
    with pytest.raises(InputError, match=r"row 2: its id 'own-1' is that of .*row 1"):
        read_set(folder_of(tmp_path, OWN, OWN, split="twice", name="twice"))


def test_a_set_that_cannot_be_reached_is_refused_in_one_line():
    with pytest.raises(InputError, match="no file or folder here, and the hub set") as refusal:
        read_set("nobody-here/no-such-set:default:test")
    assert "check the name" in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_set_that_needs_its_own_script_is_refused_with_what_to_do(monkeypatch):
    def refused(*args, **options):
        raise RuntimeError("Dataset scripts are no longer supported, but found LongBench.py")

    monkeypatch.setattr(datasets, "load_dataset", refused)
    with pytest.raises(InputError, match=r"found LongBench\.py\); name a copy of the set in Parq"):
        read_set("THUDM/LongBench:hotpotqa:test")


def test_without_the_library_the_extra_is_named(tmp_path, monkeypatch):
    folder = folder_of(tmp_path, OWN)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match=r"pip install 'coinkv\[eval\]'"):
        read_set(folder)


def test_loading_is_silent_and_leaves_the_library_as_it_was(tmp_path, monkeypatch, capfd, caplog):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(logging.getLogger("datasets"), "handlers", [caplog.handler])
    datasets.enable_progress_bars()
    before = datasets.utils.logging.get_verbosity()
    folder = folder_of(tmp_path, OWN)
    read_set(folder)
    (folder / "test.jsonl").write_text('{"question":\n')
    for name in (folder, "nobody-here/no-such-set"):
        with pytest.raises(InputError):
            read_set(name)
    assert capfd.readouterr() == ("", "")
    assert caplog.records == []
    assert datasets.utils.logging.get_verbosity() == before
    assert not datasets.are_progress_bars_disabled()
    assert datasets.config.HF_HUB_OFFLINE is False


def test_a_hub_that_does_not_answer_is_not_asked_again_and_again(monkeypatch):
    def load(*args, **options):
        return [{**OWN, "question": f"offline is {datasets.config.HF_HUB_OFFLINE}"}]

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets, "load_dataset", load)
    (row,) = read_set("nobody-here/loaded-before:default:test").rows
    assert row.question == "offline is True"
    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", lambda *args, **options: None)
    (row,) = read_set("nobody-here/loaded-before:default:test").rows
    assert row.question == "offline is False"
