"""Recall tells which gold passages and answers stand in the context, and when none can."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coinkv.corpus.documents import read_documents
from coinkv.evaluate.dataset import EvalRow, EvalSet, Passage, read_set, write_passages
from coinkv.evaluate.recall import answer_recall, evidence_recall
from coinkv.rag.answer import Evidence
from coinkv.rag.ask import CoinRAG
from small_corpus import DOCUMENTS, QUESTIONS

BRIDGE = Passage(
    "The bridge", "Anna Holm built it. It crosses  the\r\nriver Arve in 3 arches.", True
)
MILL = Passage("The mill", "It grinds rye.", True)
SCHOOL = Passage("The school", "It opened in 1901.", False)
ROW = EvalRow("1", "Who built it?", ("Anna Holm", "Holm"), (BRIDGE, MILL, SCHOOL))


def evidence(text, title="The bridge", start=0, document="bridge", chunk=0):
    return Evidence(document, title, chunk, start, start + len(text), text, 0.5, 0, 1000)


def asked(*answers):
    return EvalRow("1", "?", answers)


def test_evidence_recall_is_the_share_of_gold_passages_with_some_text_in_the_context():
    bridge, mill = evidence("Anna Holm built it."), evidence("It grinds rye.", "The mill")
    school = evidence("It opened in 1901.", "The school")
    assert evidence_recall([], ROW) == 0
    assert evidence_recall([school], ROW) == 0
    assert evidence_recall([bridge, bridge, school], ROW) == 0.5
    assert evidence_recall([mill, school, bridge], ROW) == 1


def test_evidence_of_another_title_or_text_is_not_of_the_passage():
    assert evidence_recall([evidence("Anna Holm built it.", "Bridges")], ROW) == 0
    assert evidence_recall([evidence("Anna Holm drew it.")], ROW) == 0
    assert evidence_recall([evidence(" \n")], ROW) == 0
    twins = (Passage("Holm", "A painter.", True), Passage("Holm", "A town.", True))
    row = EvalRow("1", "?", (), twins)
    assert evidence_recall([evidence("A town.", "Holm")], row) == 0.5


def test_white_space_is_compared_as_the_documents_keep_it():
    assert evidence_recall([evidence("crosses  the\nriver Arve")], ROW) == 0.5
    row = EvalRow("1", "?", (), (Passage(" The \n mill", "It\0 grinds\r\n\r\nrye. \ud83d", True),))
    assert evidence_recall([evidence("It grinds\n\nrye. \ufffd", "The mill")], row) == 1


def test_without_a_label_there_is_no_evidence_recall():
    for label in (None, False):
        row = EvalRow("1", "?", (), (Passage("The mill", "It grinds rye.", label),))
        assert evidence_recall([evidence("It grinds rye.", "The mill")], row) is None
    assert evidence_recall([evidence("It grinds rye.")], asked("rye")) is None


LINES = st.lists(
    st.sampled_from(
        ["The mill", "rye", " ", "\n", "\r\n", "\t", "\0", "\ufeff", "\ud83d", "é", "x."]
    ),
    max_size=12,
).map("".join)


@settings(max_examples=60, deadline=None)
@given(LINES, LINES.filter(lambda text: any(c.isalnum() for c in text)), st.data())
def test_any_piece_of_a_stored_document_is_found_in_its_passage(title, text, data):
    row = EvalRow("1", "?", (), (Passage(title, text, True),))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "corpus.jsonl"
        write_passages(EvalSet("one", (row,)), path)
        (document,) = read_documents(path)
    start = data.draw(st.integers(0, len(document.text) - 1))
    end = data.draw(st.integers(start + 1, len(document.text)))
    piece = evidence(document.text[start:end], document.title, start)
    assert evidence_recall([piece], row) == float(bool(piece.text.replace("\ufeff", "").strip()))


def test_an_answer_is_found_in_any_evidence_whatever_its_case_articles_and_punctuation():
    found = [evidence("It grinds rye."), evidence('"The  Arve," he said.', start=50)]
    assert answer_recall(found, asked("Rhône", "arve")) == 1
    assert answer_recall(found, asked("an ARVE he said")) == 1
    assert answer_recall(found, asked("Rhône")) == 0
    assert answer_recall([], asked("Arve")) == 0


@pytest.mark.parametrize("text", ["the party", "artful", "Art1", "é art"[:1] + "art", "start."])
def test_an_answer_inside_a_word_is_not_found(text):
    assert answer_recall([evidence(text)], asked("art")) == 0


@pytest.mark.parametrize(
    "text", ["art", "(Art)", "“art”", "art-house", "art’s", "art's", "def art(self):", "an art."]
)
def test_an_answer_beside_punctuation_is_found(text):
    assert answer_recall([evidence(text)], asked("Art")) == 1


@pytest.mark.parametrize("answer", ["U.S.", "US", "St.-Louis", "C++", "_read_char", "1,843 (c.)"])
def test_an_answer_with_punctuation_is_found_as_written(answer):
    assert answer_recall([evidence(f"It is in {answer} and elsewhere")], asked(answer)) == 1


def test_pieces_of_a_chunk_next_to_each_other_are_read_on_in_document_order():
    first, second = evidence("He lived in St."), evidence("Louis from 1903.", start=16)
    assert answer_recall([second, first], asked("St. Louis")) == 1
    assert answer_recall([first, evidence("Louis", start=17)], asked("St. Louis")) == 0
    assert answer_recall([first, evidence("Louis", start=16, chunk=1)], asked("St. Louis")) == 0
    elsewhere = evidence("Louis", start=16, document="mill")
    assert answer_recall([first, elsewhere], asked("St. Louis")) == 0


def test_pieces_that_touch_or_overlap_are_joined_without_a_space_or_a_repetition():
    pieces = [evidence("the river Ar"), evidence("ve", start=12), evidence("rve valley", start=11)]
    assert answer_recall(pieces, asked("river Arve valley")) == 1
    assert answer_recall(pieces, asked("Ar")) == 0
    inside = [evidence("the river Arve flows"), evidence("river", start=4)]
    inside.append(evidence("on", start=21))
    assert answer_recall(inside, asked("Arve flows on")) == 1


@pytest.mark.parametrize("answers", [(), ("yes",), ("No.",), ("Yes", "no"), ("the", "?!")])
def test_where_nothing_can_be_looked_for_there_is_no_answer_recall(answers):
    assert answer_recall([evidence("Yes, the answer is no.")], asked(*answers)) is None


def test_yes_beside_other_answers_is_not_looked_for():
    assert answer_recall([evidence("Yes, it is.")], asked("yes", "rye")) == 0
    assert answer_recall([evidence("It is rye.")], asked("yes", "rye")) == 1


def test_what_an_index_answers_with_is_recognised(index, tmp_path):
    text = DOCUMENTS["bridge.txt"]
    row = {"question": QUESTIONS[0], "answers": ["Anna Holm"]}
    row["passages"] = [{"title": "bridge", "text": text, "is_supporting": True}]
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row))
    (asked_row,) = read_set(path).rows
    for method in ("standard_cag", "coinrag"):
        everything = CoinRAG(index, method=method, k_chunks=5, k_nuggets=index.vectors.nuggets)
        answer = everything.ask(asked_row.question)
        assert evidence_recall(answer.evidence, asked_row) == 1
        assert answer_recall(answer.evidence, asked_row) == 1
        others = [piece for piece in answer.evidence if piece.document != "bridge.txt"]
        assert others
        assert evidence_recall(others, asked_row) == answer_recall(others, asked_row) == 0
