"""Engines over tiny models."""

from __future__ import annotations

import pytest
from transformers import AutoTokenizer

from coinkv.boost.engine import KVBoost
from coinkv.model.embedded import default_source
from coinkv.model.load import load
from tiny_models import SUPPORTED, save_tiny_model

BUDGET = 50_000_000


@pytest.fixture
def engine(tiny_backbone):
    """Makes engines; chunks of about 16 tokens, so that pieces of 90 have several."""
    made = []

    def make(model="llama", *, budget_bytes=BUDGET, chunk_tokens=16, repair="selective", **options):
        backbone = tiny_backbone(model) if isinstance(model, str) else model
        made.append(
            KVBoost.from_pretrained(
                backbone,
                budget_bytes=budget_bytes,
                chunk_tokens=chunk_tokens,
                repair=repair,
                **options,
            )
        )
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture(scope="session")
def reader(tmp_path_factory):
    """A tiny model of 4,096 tokens of context that reads with the default model's tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(default_source())
    folder = save_tiny_model(
        tmp_path_factory.mktemp("reader"),
        {**SUPPORTED["llama"], "max_position_embeddings": 4096, "vocab_size": len(tokenizer)},
    )
    tokenizer.save_pretrained(folder)
    return load(str(folder), device="cpu")
