"""A model whose prompts can be written, and stand-ins for the systems."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections import Counter
from pathlib import Path

import pytest

from coinkv.evaluate.boost import systems
from coinkv.evaluate.boost.prompts import prompt_model
from coinkv.evaluate.boost.systems import Conditions

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def model(tiny_folder):
    return prompt_model(str(tiny_folder("llama")), device="cpu", dtype=None)


@pytest.fixture
def conditions(model):
    return Conditions(model, 1, 1_000_000, None, "raw", "content")


@pytest.fixture
def stand_ins(tmp_path, monkeypatch):
    """Stand-ins in place of the systems; returns how to make some fail, and a log of prompts."""
    folder = tmp_path / "workers"
    folder.mkdir()
    for name in ("coinkv", "kvboost", "vllm"):
        shutil.copy(HERE / "stand_in_worker.py", folder / f"{name}_worker.py")
    monkeypatch.setattr(systems, "_WORKERS", folder)
    monkeypatch.setenv("STAND_IN_LOG", str(tmp_path / "asked.log"))
    monkeypatch.setenv("STAND_IN", "{}")
    return StandIns(monkeypatch, tmp_path / "asked.log")


class StandIns:
    def __init__(self, monkeypatch, log):
        self.python = sys.executable
        self._monkeypatch, self._log = monkeypatch, log

    def fail(self, **faults):
        self._monkeypatch.setenv("STAND_IN", json.dumps(faults))

    def asked(self):
        """How many prompts each was given since the last look, and in which order."""
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        if lines:
            os.truncate(self._log, 0)
        return Counter(lines), lines
