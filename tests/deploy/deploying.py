"""Where the files are, and what of them are settings of the server."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from coinkv.serve.settings import ServeSettings

PROJECT = Path(__file__).parents[2]
DEPLOY = PROJECT / "deploy"
PREFIX = "COINKV_SERVE_"


def settings_from(variables: Mapping[str, str], patch: pytest.MonkeyPatch) -> ServeSettings:
    """The settings that environment variables make; every one of them must be a setting."""
    for name, value in variables.items():
        if name.startswith(PREFIX):
            assert name.removeprefix(PREFIX).lower() in ServeSettings.model_fields, name
            patch.setenv(name, value)
        else:
            assert name in {"COINKV_HOME", "PATH", "PYTHONUNBUFFERED"}, name
    return ServeSettings()
