"""Citations: what evidence supports is cited, at its place in the answer, and nothing else is."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coinkv.corpus.documents import read_documents
from coinkv.rag.answer import Evidence
from coinkv.rag.citations import MOST, cite

ANDROID = "android_robot.md"
ASTRONOMER = "astronomer.md"
FARMING = "agricultural_science.md"
VIRUS = "host_resilience.html"


@pytest.fixture(scope="module")
def demo():
    found = read_documents(files("coinkv.cli") / "demo_data" / "docs")
    return {document.key: document for document in found}


@pytest.fixture(scope="module")
def evidence(demo):
    """The sentences of demo documents that begin so, as pieces of evidence."""

    def made(*places):
        return [piece(demo[key], beginning) for key, beginning in places]

    return made


def piece(document, beginning):
    start = document.text.index(beginning)
    end = start + re.search(r"[.](?=\s)|\Z", document.text[start:]).end()
    return Evidence(
        document.key, document.title, 0, start, end, document.text[start:end], 0.5, 0, 9
    )


def said(text, title="A title"):
    return Evidence("key", title, 0, 0, len(text), text, 0.5, 0, len(text))


def cited(answer, pieces):
    """The cited parts with the numbers of their pieces."""
    return [(answer[c.start : c.end], c.evidence) for c in cite(answer, pieces)]


ROBOTS = (
    (ANDROID, "Waseda University initiated"),
    (ANDROID, "In 1984, WABOT-2"),
    (ANDROID, "It was capable of playing"),
    (ANDROID, "Wabot-2 had ten fingers"),
    (ANDROID, "In 1986, Honda began"),
    (ANDROID, "The Intelligent Robotics Lab, directed"),
    (ANDROID, "The height of the human body part"),
    (ANDROID, "There are 47 mobile points"),
    (ASTRONOMER, "The American Astronomical Society"),
    (ASTRONOMER, "The International Astronomical Union"),
    (FARMING, "In 1843, John Bennet Lawes"),
    (VIRUS, "SARS-CoV uses the ACE2 receptor"),
)


@pytest.fixture(scope="module")
def robots(evidence):
    return evidence(*ROBOTS)


@pytest.mark.parametrize(
    ("answer", "number"),
    [
        ("1972", 0),
        ("Waseda University", 0),
        ("165 cm", 6),
        ("The height of the human body part of DER2 is 165 cm.", 6),
        ("Honda began its humanoid research in 1986.", 4),
        ("The International Astronomical Union has almost 10,145 members.", 9),
        ("10145 members", 9),
        ("John Bennet Lawes and Joseph Henry Gilbert began them at Rothamsted Research.", 10),
        ("SARS-CoV uses the ACE2 receptor to enter cells.", 11),
        ("It was revealed in 1984.", 1),
        ("The experiments began in 1843.", 10),  # began, begun; experiment, experiments
    ],
)
def test_a_short_answer_or_a_sentence_is_cited_as_a_whole(robots, answer, number):
    assert cited(answer, robots)[0] == (answer, number)


@pytest.mark.parametrize(
    "answer",
    [
        "1973",  # no such number
        "The WABOT-1 was completed in 1973.",
        "The height of the human body part of DER2 is 170 cm.",
        "Toyota",
        "In 1986, Toyota began its humanoid research and development program.",  # another name
        "John Bennet Lawes and Anna Holm began field experiments at Rothamsted Research.",
        "The International Astronomical Union comprises almost 10,146 members from 70 countries.",
        "I do not know.",
        "The documents do not say anything about bees and honey.",
        "Yes.",
        "No",
        "",
        " \n ",
        "?!",
        "🤖",
    ],
)
def test_what_no_evidence_supports_is_not_cited(robots, answer):
    assert cited(answer, robots) == []


def test_without_evidence_nothing_is_cited():
    assert cite("Honda began in 1986.", []) == ()


def test_every_sentence_has_its_own_citation(robots):
    first = "Waseda University completed the WABOT-1 in 1972."
    second = "Honda began a research program in 1986."
    unknown = "Nobody knows what became of the bees."
    third = "The International Astronomical Union has 10,145 members."
    answer = f"{first} {second} {unknown}\n{third}"
    assert cited(answer, robots) == [(first, 0), (second, 4), (third, 9)]


def test_a_sentence_that_only_two_pieces_together_support_cites_both(robots):
    answer = "Wabot-2 had ten fingers and was capable of playing the organ."
    assert sorted(cited(answer, robots)) == [(answer, 2), (answer, 3)]


def test_of_a_sentence_that_is_half_right_only_the_right_clause_is_cited(robots):
    answer = "WABOT-1 was completed in 1972, but Toyota bought it in 1999."
    assert cited(answer, robots) == [("WABOT-1 was completed in 1972", 0)]


@pytest.mark.parametrize("lead", ["The answer is: ", "Antwort auf deine Frage: ", "答案是："])
def test_what_stands_behind_a_colon_is_cited_as_a_short_answer(robots, lead):
    assert cited(f"{lead}1972", robots) == [("1972", 0)]
    assert cited(f"{lead}1973", robots) == []


def test_a_sentence_has_two_citations_at_most(robots):
    same = [*robots[:1], said(robots[0].text, robots[0].title), *robots[:1]]
    assert [number for _, number in cited("Waseda University, 1972", same)] == [0, 1]
    clauses = "In 1986, Honda; 47 mobile points; Toyota; 165 cm; the ACE2 receptor"
    assert len(cited(clauses, robots)) <= MOST


def test_evidence_that_comes_first_is_cited_first(robots):
    twin = said("The Kokoro company is in Tokyo. It was founded in 1984.")
    assert cited("1984", [twin, robots[1]])[0] == ("1984", 0)
    assert cited("1984", [robots[1], twin])[0] == ("1984", 0)


def test_a_name_that_only_the_documents_title_holds_supports_a_sentence():
    pieces = [said("It has 24 paddles of larch wood.", "The water mill")]
    assert cited("The Mill has 24 paddles.", pieces) == [("The Mill has 24 paddles.", 0)]
    assert cited("The old School has 24 paddles.", pieces) == []


def test_words_far_apart_in_a_long_chunk_support_no_sentence(demo):
    document = demo[ANDROID]
    start = document.text.index("Japanese robotics have been")
    chunk = said(document.text[start : start + 3000], document.title)
    answer = "Honda exhibited a full-scale robot with artificial eyes in Yokohama."
    assert all(word in chunk.text for word in ("Honda", "full-scale", "eyes", "Yokohama"))
    assert cited(answer, [chunk]) == []
    right = "Saya was exhibited at Robodex 2002 in Yokohama."
    assert cited(right, [chunk]) == [(right, 0)]


@pytest.mark.parametrize(
    ("answer", "supports"),
    [
        (
            "Die Brücke wurde 1843 von Anna Holm gebaut.",
            "Im Jahr 1843 hat Anna Holm die Brücken gebaut.",
        ),
        ("Le pont fut construit en 1843.", "Anna Holm construisit le pont de pierre en 1843."),
        ("El puente fue construido en 1843.", "El puente de piedra se construyó en 1843."),
        ("Мост построила Анна Хольм.", "Каменный мост построила в 1843 году Анна Хольм."),
        ("橋は1843年に建てられた。", "石の橋は1843年にアンナ・ホルムによって建てられた。"),
        ("这座桥建于1843年。", "石桥建于1843年，由安娜·霍尔姆建造。"),
        ("다리는 1843년에 지어졌다.", "돌다리는 1843년에 지어졌다. 다리는 세 개의 아치가 있다."),
        ("بني الجسر عام 1843.", "بني الجسر الحجري عام 1843 على يد آنا هولم."),
        ("पुल 1843 में बना था।", "पत्थर का पुल 1843 में बना था।"),
    ],
)
def test_answers_in_other_languages_and_scripts_are_cited(answer, supports):
    other = said("The mill grinds rye and barley. 水車小屋は博物館である。 Die Mühle mahlt Roggen.")
    assert cited(answer, [other, said(supports)]) == [(answer, 1)]
    assert cited(answer, [other]) == []


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (
            "According to Dr. A. Holm it was built in 1843. Then it fell.",
            "According to Dr. A. Holm it was built in 1843.",
        ),
        (
            "1. It was built by Dr. A. Holm in 1843.\n2. Bees.",
            "It was built by Dr. A. Holm in 1843.",
        ),
        ("- built by Dr. A. Holm in 1843\n- bees", "built by Dr. A. Holm in 1843"),
        ('"Built by Dr. A. Holm in 1843." So it says.', '"Built by Dr. A. Holm in 1843."'),
    ],
)
def test_a_sentence_ends_neither_at_an_abbreviation_nor_at_the_number_of_an_item(answer, sentence):
    assert cited(answer, [said("The bridge was built by Dr. A. Holm in 1843.")]) == [(sentence, 0)]


def test_what_is_cited_does_not_depend_on_how_often_it_is_asked(robots):
    answer = "Honda began a research program in 1986, with ten fingers and 47 mobile points."
    assert len({cite(answer, robots) for _ in range(5)}) == 1


@settings(max_examples=200, deadline=None)
@given(
    answer=st.text(max_size=80),
    texts=st.lists(st.text(max_size=60), max_size=4),
    repeated=st.booleans(),
)
def test_ranges_lie_in_the_answer_and_hold_text_whatever_is_said(answer, texts, repeated):
    pieces = [said(text) for text in ([answer, *texts] if repeated else texts)]
    for citation in cite(answer, pieces):
        assert 0 <= citation.start < citation.end <= len(answer)
        assert (
            answer[citation.start : citation.end].strip() == answer[citation.start : citation.end]
        )
        assert 0 <= citation.evidence < len(pieces)
