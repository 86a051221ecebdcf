"""An objective is a method whose prefix can be trained through, and the forms it shows a row in."""

from __future__ import annotations

import pytest

from coinkv.errors import InputError
from coinkv.methods.registry import METHODS
from coinkv.train.objectives import objective_named, trainable


@pytest.mark.parametrize("name", trainable())
def test_every_method_that_picks_no_tokens_can_be_trained_for(name):
    objective = objective_named(name, {})
    assert objective.method.name == objective.forms[0].name == name
    assert objective.links == (5 if name.endswith("kvlink") else 0)


def test_block_attention_shows_every_row_in_blocks_and_in_full():
    objective = objective_named("block_attention", {})
    assert [form.name for form in objective.forms] == ["block_attention", "standard_rag"]
    assert objective.whole_context


@pytest.mark.parametrize(
    ("name", "whole"), [("coinrag", False), ("turborag", False), ("standard_rag", True)]
)
def test_only_plain_text_makes_the_whole_context_live(name, whole):
    assert objective_named(name, {}).whole_context is whole


@pytest.mark.parametrize("name", sorted(METHODS.keys() - set(trainable())))
def test_methods_that_pick_tokens_while_they_run_are_refused(name):
    with pytest.raises(InputError, match="cannot be trained through"):
        objective_named(name, {})


def test_given_link_embeddings_are_refused():
    with pytest.raises(InputError, match="link embeddings are given"):
        objective_named("kvlink", {"embeddings": "links.safetensors"})


def test_options_reach_the_method_and_unknown_ones_are_refused():
    assert objective_named("turborag", {"positions": "composite"}).method.positions == "composite"
    assert objective_named("kvlink", {"links": 2}).links == 2
    with pytest.raises(InputError, match="no option"):
        objective_named("coinrag", {"positions": "composite"})


def test_links_that_no_memory_holds_are_refused():
    with pytest.raises(InputError, match=r"links is 1000000.*; use at most 1000"):
        objective_named("kvlink", {"links": 10**30})
