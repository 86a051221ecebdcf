"""Which first words scored answers begin with."""

from __future__ import annotations

import json

import pytest

from coinkv.cli.options import lead_for
from coinkv.errors import ModelNotFoundError
from coinkv.evaluate.run import ANSWER_LEAD
from coinkv.model.adapter import CARD


@pytest.fixture
def carded(tmp_path):
    def made(**facts):
        card = {"base_fingerprint": "f" * 64, "scope": "live", **facts}
        (tmp_path / CARD).write_text(json.dumps(card))
        (tmp_path / "adapter_config.json").write_text("{}")
        return tmp_path

    return made


def test_words_given_go_before_all(carded):
    assert lead_for("It is", carded(recipe={"answer_lead": "So:"})) == "It is"
    assert lead_for("", None) == ""


def test_an_adapter_is_asked_with_the_words_it_learned_behind(carded):
    assert lead_for(None, carded(recipe={"answer_lead": "So:"})) == "So:"
    assert lead_for(None, carded(recipe={"answer_lead": ""})) == ""


def test_without_a_word_about_them_they_are_those_of_evaluation(carded):
    assert lead_for(None, None) == ANSWER_LEAD
    for facts in ({}, {"recipe": 7}, {"recipe": {"answer_lead": 7}}):
        assert lead_for(None, carded(**facts)) == ANSWER_LEAD


def test_an_adapter_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ModelNotFoundError, match="nowhere"):
        lead_for(None, tmp_path / "nowhere")
