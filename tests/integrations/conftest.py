"""The village of `small_corpus`, indexed for a tiny chat model, and a network that is not there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from coinkv.boost.engine import KVBoost
from coinkv.model.backbone import Backbone
from coinkv.model.load import load
from coinkv.model.threads import one_thread
from coinkv.rag.build import BuildOptions, build
from coinkv.rag.index import Index
from fixtures.chat_model import TEMPLATE
from small_corpus import CHUNK_TOKENS, quick, village  # noqa: F401
from tiny_models import save_tiny_model

OFFLINE = """
import os, socket

def only_here(reach, host_of):
    def reached(*arguments, **more):
        if host_of(arguments) not in ("127.0.0.1", b"127.0.0.1"):
            with open(os.environ["ATTEMPTS"], "a") as file:
                print(arguments, file=file)
            raise OSError("no network in this test")
        return reach(*arguments, **more)
    return reached

socket.getaddrinfo = only_here(socket.getaddrinfo, lambda given: given[0])
socket.socket.connect = only_here(socket.socket.connect, lambda given: given[1][0])
socket.socket.connect_ex = only_here(socket.socket.connect_ex, lambda given: given[1][0])
"""


@pytest.fixture(scope="session")
def chat_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Llama with a chat template and 4,096 tokens of context."""
    options = {"model_type": "llama", "max_position_embeddings": 4096}
    folder = tmp_path_factory.mktemp("model") / "tiny-chat"
    return save_tiny_model(folder, options, chat_template=TEMPLATE)


@pytest.fixture(scope="session")
def chat_backbone(chat_folder: Path) -> Backbone:
    with one_thread():
        return load(str(chat_folder), device="cpu")


@pytest.fixture(scope="session")
def chat_index_folder(
    village: Path,  # noqa: F811
    chat_backbone: Backbone,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """An index of the village for the tiny chat model; tests only ask it."""
    folder = tmp_path_factory.mktemp("built") / "index"
    build(village, folder, BuildOptions(model=chat_backbone, chunk_tokens=CHUNK_TOKENS))
    return folder


@pytest.fixture
def index(chat_index_folder: Path, chat_backbone: Backbone) -> Index:
    return Index.open(chat_index_folder, model=chat_backbone)


@pytest.fixture
def engine(chat_backbone: Backbone) -> Iterator[KVBoost]:
    with KVBoost.from_pretrained(
        chat_backbone, budget_bytes=50_000_000, chunk_tokens=16, repair="none", least_reuse=0
    ) as engine:
        yield engine


@pytest.fixture
def offline(tmp_path: Path) -> dict[str, str]:
    """Environment of a process that reaches loopback only; other attempts go to `$ATTEMPTS`."""
    (tmp_path / "offline").mkdir()
    (tmp_path / "offline" / "sitecustomize.py").write_text(OFFLINE)
    return {"PYTHONPATH": str(tmp_path / "offline"), "ATTEMPTS": str(tmp_path / "attempts")}
