"""Training caches of tiny models, opened once a test run."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from coinkv.model.load import load
from coinkv.rag.options import BuildOptions
from coinkv.train.passages import Passages
from tiny_models import save_tiny_model
from training_rows import SMALL, drawn, made_up_rows, write_rows


@pytest.fixture(scope="session")
def small_model(tmp_path_factory):
    """The folder of a model smaller than the tiny ones."""
    return save_tiny_model(tmp_path_factory.mktemp("small") / "model", SMALL)


@pytest.fixture(scope="session")
def rows_file(tmp_path_factory):
    return write_rows(tmp_path_factory.mktemp("rows") / "towns.jsonl", made_up_rows(40))


@pytest.fixture(scope="session")
def data(rows_file):
    """32 rows to learn from and 8 development rows."""
    return drawn(rows_file, held_out=8)


@pytest.fixture(scope="session")
def opened(tmp_path_factory, tiny_backbone, small_model):
    """The training cache of a tiny model, by its name; `small` is the smallest."""
    caches = {}
    with ExitStack() as stack:

        def passages(name="small"):
            if name not in caches:
                model = load(str(small_model), device="cpu") if name == "small" else None
                options = BuildOptions(model=model or tiny_backbone(name), chunk_tokens=64)
                folder = tmp_path_factory.mktemp("training")
                caches[name] = stack.enter_context(Passages.open(folder, options))
            return caches[name]

        yield passages


@pytest.fixture(scope="session")
def passages(opened):
    return opened()


@pytest.fixture(scope="session")
def few(tmp_path_factory):
    """A dozen rows with short passages, soon known by heart."""
    path = tmp_path_factory.mktemp("few") / "few.jsonl"
    return drawn(write_rows(path, made_up_rows(12, passages=2)))


@pytest.fixture
def own_model(small_model):
    """A model that a test may change."""
    return load(str(small_model), device="cpu")
