"""Fixtures shared by all tests: a home folder of their own, and tiny models loaded once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from coinkv.model.backbone import Backbone
from coinkv.model.load import load
from tiny_models import SUPPORTED, save_tiny_model

# Tiny models gain nothing by more threads, and tests may share their machine.
torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def gate_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Gate verdicts of test models go to a folder of the test run; converted models stay shared."""
    home = tmp_path_factory.mktemp("home")
    from coinkv.config import home as user_home

    models = user_home() / "models"
    models.mkdir(parents=True, exist_ok=True)
    (home / "models").symlink_to(models, target_is_directory=True)
    before = os.environ.get("COINKV_HOME")
    os.environ["COINKV_HOME"] = str(home)
    yield home
    if before is None:
        del os.environ["COINKV_HOME"]
    else:
        os.environ["COINKV_HOME"] = before


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The Hugging Face folder of a tiny supported model, by its name in `tiny_models.SUPPORTED`."""
    root = tmp_path_factory.mktemp("models")

    def folder(name: str) -> Path:
        if not (root / name).exists():
            save_tiny_model(root / name, SUPPORTED[name])
        return root / name

    return folder


@pytest.fixture(scope="session")
def tiny_backbone(tiny_folder: Callable[[str], Path]) -> Callable[[str], Backbone]:
    """A tiny supported model, loaded once a test run."""
    loaded: dict[str, Backbone] = {}

    def backbone(name: str = "llama") -> Backbone:
        if name not in loaded:
            loaded[name] = load(str(tiny_folder(name)), device="cpu")
        return loaded[name]

    return backbone


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The browser's tests come last: the driver's event loop goes on in this thread behind them."""
    items.sort(key=lambda item: item.get_closest_marker("browser") is not None)
