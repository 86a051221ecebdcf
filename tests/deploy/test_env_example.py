"""The example of an environment file sets what can be set, and to values that are taken."""

from __future__ import annotations

import re

import pytest
from deploying import DEPLOY, settings_from

TEXT = (DEPLOY / "coinkv.env.example").read_text("utf-8")
SET = dict(re.findall(r"^([A-Z_]+)=(.*)$", TEXT, re.MULTILINE))
OFFERED = dict(re.findall(r"^#([A-Z_]+)=(.*)$", TEXT, re.MULTILINE))


def test_what_it_sets_and_what_it_offers_are_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(SET) > 5
    assert len(OFFERED) > 3
    settings_from(SET | OFFERED, monkeypatch)


def test_what_it_sets_is_what_the_server_does_anyway_but_for_the_logs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usual = settings_from({}, monkeypatch)
    chosen = settings_from(SET, monkeypatch)
    changed = {name for name, value in chosen if value != getattr(usual, name)}
    assert changed == {"log_format"}


def test_every_line_is_a_variable_a_comment_or_empty() -> None:
    odd = [line for line in TEXT.splitlines() if not re.match(r"$|#|[A-Z_]+=\S", line)]
    assert odd == []
