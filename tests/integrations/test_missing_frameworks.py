"""Where a framework is not installed, its adapter says what to install."""

from __future__ import annotations

import importlib
import sys

import pytest

from coinkv.errors import InputError

ADAPTERS = [
    ("langchain", "langchain_core", "langchain"),
    ("llama_index", "llama_index", "llama-index"),
]


def without(monkeypatch, missing, adapter, framework):
    """Import an adapter afresh where a package is not installed."""
    for name in list(sys.modules):
        if name.split(".")[0] == framework or name.startswith(f"coinkv.integrations.{adapter}"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    importlib.import_module(f"coinkv.integrations.{adapter}")


@pytest.mark.parametrize(("adapter", "framework", "extra"), ADAPTERS)
def test_an_adapter_without_its_framework_names_the_extra(monkeypatch, adapter, framework, extra):
    with pytest.raises(InputError) as caught:
        without(monkeypatch, framework, adapter, framework)
    assert f"coinkv[{extra}]" in str(caught.value)


@pytest.mark.parametrize(("adapter", "framework", "extra"), ADAPTERS)
def test_a_framework_that_is_broken_is_not_taken_for_one_that_is_missing(
    monkeypatch, adapter, framework, extra
):
    with pytest.raises(ImportError, match="pydantic"):
        without(monkeypatch, "pydantic", adapter, framework)
