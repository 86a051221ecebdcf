"""Log lines of a test as objects, with the process's own logging put back afterwards."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from log_lines import Lines
from transformers.utils import logging as of_transformers

from coinkv.serve.observe.logs import configure_logs
from coinkv.serve.settings import ServeSettings


@pytest.fixture
def own_logging() -> Iterator[None]:
    """Whatever a test does to logging ends with it."""
    names = ("", "coinkv", "uvicorn", "uvicorn.error", "uvicorn.access")
    loggers = [logging.getLogger(name) for name in names]
    before = [(each, each.level, list(each.handlers), each.disabled) for each in loggers]
    yield
    for logger, level, handlers, disabled in before:
        logger.setLevel(level)
        logger.handlers, logger.disabled = handlers, disabled
    logging.captureWarnings(False)
    of_transformers.enable_default_handler()
    of_transformers.disable_propagation()


@pytest.fixture
def lines(own_logging: None) -> Lines:
    """The log as JSON, from the level debug on."""
    lines = Lines()
    settings = ServeSettings(log_format="json", log_level="debug")
    configure_logs(settings, lines.stream)  # type: ignore[arg-type]
    return lines
