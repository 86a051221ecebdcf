"""A server over the village's documents, started once for all tests that only ask it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from serving import Running, running, settings_for

from small_corpus import (  # noqa: F401 - fixtures
    backbone,
    built,
    model_folder,
    options,
    quick,
    village,
)


@pytest.fixture(scope="session")
def running_server(
    built: tuple[Path, object],  # noqa: F811
    backbone: object,  # noqa: F811
    model_folder: Path,  # noqa: F811
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Running]:
    """A server with one index, `index`; tests must not change it."""
    settings = settings_for(
        tmp_path_factory.mktemp("served"), model=str(model_folder), indexes=(built[0],)
    )
    with running(settings, backbone) as server:  # type: ignore[arg-type]
        yield server


@pytest.fixture
def server(running_server: Running) -> str:
    """Its base URL."""
    return running_server.url


@pytest.fixture
def service(running_server: Running) -> object:
    """What it serves."""
    return running_server.service
