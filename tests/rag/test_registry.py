"""The registry: methods by name, options as a person types them, methods of other packages."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coinkv.errors import InputError
from coinkv.methods.coinrag import CoinRAG
from coinkv.methods.options import is_bounded, parsed
from coinkv.methods.registry import (
    METHODS,
    method_class,
    method_named,
    method_names,
    option_types,
    options_of,
)
from coinkv.rag.ask import CoinRAG as Asker
from small_corpus import QUESTIONS

ALIGNED_ONLY = ("coinrag_cacheblend", "coinrag_kvlink")
NUMBERS = {int: st.integers(0, 10**6), float: st.floats(0, 1)}


def values(name, option, kind):
    """Values an option takes."""
    if option == "align" and name in ALIGNED_ONLY:
        return st.just(True)
    parts = [part for part in get_args(kind) if part is not type(None)]
    if get_origin(kind) is Literal:
        return st.sampled_from(get_args(kind))
    if parts:  # ... | None
        return st.none() | values(name, option, parts[0])
    if kind is str:
        return st.text(min_size=1).filter(lambda text: text.lower() != "none")
    return st.booleans() if kind is bool else NUMBERS[kind]


@st.composite
def chosen(draw):
    """A method's name and some of its options."""
    name = draw(st.sampled_from(sorted(METHODS)))
    hints = get_type_hints(METHODS[name])
    every = {
        field.name: values(name, field.name, hints[field.name]) for field in fields(METHODS[name])
    }
    some = draw(st.sets(st.sampled_from(sorted(every)))) if every else set()
    return name, {option: draw(every[option]) for option in sorted(some)}


@given(chosen())
def test_options_given_as_text_are_those_given_as_values(name_and_options):
    name, options = name_and_options
    method = method_named(name, options)
    assert [getattr(method, option) for option in options] == list(options.values())
    assert method_named(name, {option: str(value) for option, value in options.items()}) == method


@given(chosen())
def test_what_options_of_names_differs_from_the_defaults_and_makes_the_method_again(
    name_and_options,
):
    name, options = name_and_options
    method = method_named(name, options)
    found = options_of(method)
    default = method_named(name)
    assert found == {o: v for o, v in options.items() if v != getattr(default, o)}
    assert method_named(name, found) == method


@pytest.mark.parametrize("name", METHODS)
def test_a_method_by_its_name_alone_has_no_options_that_differ(name):
    method = method_named(name)
    assert method.name == name
    assert method.unit in ("chunk", "nugget")
    assert options_of(method) == {}


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("Yes", bool, True),
        ("off", bool, False),
        (" 7", int, 7),
        (7.0, int, 7),
        ("1e-1", float, 0.1),
        (1, float, 1.0),
        ("2", Literal[1, 2], 2),
        ("None", str | None, None),
        ("~/x", str | None, "~/x"),
    ],
)
def test_a_value_is_read_as_the_type_of_its_option(text, kind, value):
    found = parsed("it", text, kind)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("value", "kind", "hint"),
    [
        ("1", bool, "type bool"),
        (0, bool, "type bool"),
        ("0.5", int, "type int"),
        (0.5, int, "type int"),
        (True, int, "type int"),
        (float("inf"), int, "type int"),
        ([1], int, "type int"),
        ("nan", float, "type float"),
        ("inf", float, "type float"),
        (10**400, float, "type float"),
        (True, float, "type float"),
        ("", float, "type float"),
        ("best", Literal["rank", "document"], "use one of rank, document"),
        ("none", Literal["rank", "document"], "use one of rank, document"),
        ("3", Literal[1, 2], "use one of 1, 2"),
    ],
)
def test_a_value_of_another_type_is_refused_with_what_would_do(value, kind, hint):
    with pytest.raises(InputError) as raised:
        parsed("it", value, kind)
    assert hint in str(raised.value)
    assert str(raised.value).startswith("it is ")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("coinrag", {"ordr": "rank"}, "its options are stages, encoding, align, order, title"),
        ("epic", {"ratio": "0.5"}, "its options are tokens, encode_after"),
        ("standard_rag", {"order": "rank"}, "it has none"),
        ("coinrag", {"order": "best"}, "use one of retrieval, rank, document"),
        ("coinrag", {"encode_after": "all"}, "use one of prefix, nothing"),
        ("coinrag_kvlink", {"align": "no"}, "aligned"),
        ("coinrag_cacheblend", {"align": "no"}, "aligned"),
        ("kvlink", {"links": "-1"}, "use 0 or more"),
        ("epic", {"tokens": "-1"}, "use 0 or more"),
        ("turborag", {"positions": "scrambled"}, "use one of reordered, composite"),
    ],
)
def test_an_option_or_value_that_does_not_exist_is_refused_in_one_line(name, options, message):
    with pytest.raises(InputError) as raised:
        method_named(name, options)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("coinrag", {"stages": 3}),
        ("coinrag", {"encoding": "none"}),
        ("coinrag", {"order": "random"}),
        ("coinrag", {"title": "bold"}),
        ("coinrag", {"encode_after": "all"}),
        ("standard_cag", {"encode_after": "all"}),
        ("cacheblend", {"encode_after": "all"}),
        ("epic", {"encode_after": "all"}),
        ("epic", {"tokens": -1}),
        ("turborag", {"encode_after": "all"}),
        ("turborag", {"positions": "scrambled"}),
        ("kvlink", {"links": -1}),
        ("coinrag_kvlink", {"links": -1}),
        ("coinrag_kvlink", {"order": "random"}),
        ("text_nuggets", {"order": "random"}),
    ],
)
def test_a_method_made_in_python_refuses_what_it_does_not_know(name, wrong):
    with pytest.raises(InputError):
        METHODS[name](**wrong)


PACKAGE = """
from dataclasses import dataclass
from coinkv.methods.standard_cag import StandardCAG
from coinkv.methods.base import Method

@dataclass(frozen=True)
class First(StandardCAG):
    chunks: int = 1
    name = "first_chunks"

    def compose(self, bench, evidence, room, clock):
        kept = type(evidence)(evidence.chunks[: self.chunks], ())
        return super().compose(bench, kept, room, clock)

class Plain(Method):
    name, unit = "plain", "chunk"

    def compose(self, bench, evidence, room, clock):
        raise NotImplementedError
"""
ENTRIES = """[coinkv.methods]
first_chunks = their_methods:First
broken = their_broken_methods:First
absent = their_methods:Second
function = their_methods:dataclass
plain = their_methods:Plain
coinrag = their_methods:First
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Another package, as an installer leaves it."""
    facts = tmp_path / "their_methods-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: their-methods\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(ENTRIES)
    (tmp_path / "their_methods.py").write_text(PACKAGE)
    (tmp_path / "their_broken_methods.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)


def test_a_method_of_another_package_is_a_method_like_any_other(installed, index):
    assert method_names()[: len(METHODS)] == list(METHODS)
    assert "first_chunks" in method_names()[len(METHODS) :]
    method = method_named("first_chunks", {"chunks": "2", "encode_after": "none"})
    assert options_of(method) == {"chunks": 2}
    answer = Asker(index, method=method).ask(QUESTIONS[0])
    assert answer.method == "first_chunks"
    assert answer.len_tokens < Asker(index, method="standard_cag").ask(QUESTIONS[0]).len_tokens


def test_a_name_that_is_taken_stays_with_the_papers_method(installed):
    assert method_class("coinrag") is CoinRAG
    assert method_names().count("coinrag") == 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("broken", "cannot be loaded (division by zero)"),
        ("absent", "cannot be loaded"),
        ("function", "must name a dataclass"),
        ("plain", "must name a dataclass"),
        ("third_chunks", "use one of standard_rag, text_nuggets"),
    ],
)
def test_a_method_that_cannot_be_had_is_refused_in_one_line(installed, name, message):
    with pytest.raises(InputError) as raised:
        method_named(name)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_the_options_that_may_name_a_file_are_known():
    """A server does not let requests set them."""
    found = {
        (name, option)
        for name in METHODS
        for option, kind in option_types(METHODS[name]).items()
        if not is_bounded(kind)
    }
    assert found == {("kvlink", "embeddings"), ("coinrag_kvlink", "embeddings")}


@pytest.mark.parametrize("kind", [str, Path, str | None, Any, list[str], Literal["a"] | str])
def test_an_option_that_may_be_any_text_is_not_bounded(kind):
    assert not is_bounded(kind)


@pytest.mark.parametrize("kind", [int, float | None, bool, Literal["a"], Literal["a"] | None])
def test_an_option_of_numbers_or_some_values_is_bounded(kind):
    assert is_bounded(kind)
