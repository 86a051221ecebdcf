"""A few small documents about one village, a tiny model that reads them, and an index of them."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from coinkv.methods.blocks import ChunkBlocks
from coinkv.model.backbone import Backbone
from coinkv.model.load import load
from coinkv.model.threads import one_thread
from coinkv.rag.build import BuildOptions, BuildReport, build
from coinkv.rag.index import Index
from coinkv.retrieval.embed import load_embedder
from tiny_models import save_tiny_model

CHUNK_TOKENS = 96

DOCUMENTS = {
    "bridge.txt": (
        "The stone bridge was built in 1843 by Anna Holm. It crosses the river Arve in 3 arches. "
        "A flood destroyed the middle arch in 1910. The village rebuilt it with oak beams. "
        "Since 1962 the bridge carries no cars."
    ),
    "mill.md": (
        "# The water mill\n\nThe mill grinds rye and barley. "
        "Its wheel has 24 paddles of larch wood. "
        "Miller Peter Sand bought it in 1875 for 900 crowns.\n\n"
        "The mill stopped when the power station opened. Today it is a museum of tools."
    ),
    "school.html": (
        "<html><head><title>The school</title></head><body><p>The school opened in 1901 with 17 "
        "pupils.</p><p>Its first teacher was Marta Lund, who also kept bees.</p>"
        "<p>A bell from the old chapel still rings at 8 o'clock.</p></body></html>"
    ),
    "fish.txt": (
        "Trout live in the cold water above the weir. Herons hunt them at dawn. "
        "Fishing is allowed from May to September. A licence costs 12 crowns a year."
    ),
    "words.txt": (
        "Der Fluss heißt Arve. 橋は一八四三年に建てられた。 The festival emoji is 🎏🐟. "
        "Ærlighed varer længst, sagde mølleren."
    ),
}

QUESTIONS = (
    "Who built the stone bridge?",
    "How many paddles does the wheel of the mill have?",
    "Who was the first teacher of the school?",
    "What does a fishing licence cost?",
    "When did the flood destroy the arch?",
    "Which birds hunt trout?",
)


def write_documents(folder: Path, documents: dict[str, str] = DOCUMENTS) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in documents.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def village(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of documents; tests that change it copy it first."""
    return write_documents(tmp_path_factory.mktemp("village") / "docs")


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Llama with 2048 tokens of context."""
    folder = tmp_path_factory.mktemp("model") / "tiny-llama"
    return save_tiny_model(folder, {"model_type": "llama", "max_position_embeddings": 2048})


load_embedder_once = functools.cache(load_embedder)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The embedder is loaded once a test run, and a model this tiny needs one thread only."""
    monkeypatch.setattr("coinkv.rag.index.load_embedder", load_embedder_once)
    monkeypatch.setattr("coinkv.rag.options.load_embedder", load_embedder_once)
    with one_thread():
        yield


@pytest.fixture(scope="session")
def backbone(model_folder: Path) -> Backbone:
    with one_thread():
        return load(str(model_folder), device="cpu")


@pytest.fixture(scope="session")
def options(backbone: Backbone) -> BuildOptions:
    return BuildOptions(model=backbone, chunk_tokens=CHUNK_TOKENS)


@pytest.fixture(scope="session")
def built(
    village: Path, options: BuildOptions, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, BuildReport]:
    """The folder of an index of the village, and the report; tests only read it."""
    folder = tmp_path_factory.mktemp("built") / "index"
    return folder, build(village, folder, options)


@pytest.fixture
def index_folder(built: tuple[Path, BuildReport], tmp_path: Path) -> Path:
    """A copy of the index that a test may change."""
    return Path(shutil.copytree(built[0], tmp_path / "index"))


@pytest.fixture(scope="session")
def asked_folder(built: tuple[Path, BuildReport], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy that all tests ask: some methods keep blocks of their own in it."""
    return Path(shutil.copytree(built[0], tmp_path_factory.mktemp("asked") / "index"))


@pytest.fixture
def index(asked_folder: Path, backbone: Backbone) -> Index:
    return Index.open(asked_folder, model=backbone)


@pytest.fixture
def encodings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lengths of the chunks encoded so far in this test."""
    lengths: list[int] = []
    encode = ChunkBlocks.encode

    def counted(blocks: ChunkBlocks, token_ids):
        lengths.append(len(token_ids))
        return encode(blocks, token_ids)

    monkeypatch.setattr(ChunkBlocks, "encode", counted)
    return lengths


def block_files(folder: Path) -> list[Path]:
    return sorted((folder / "blocks").rglob("*.safetensors"))


def contents_of(folder: Path) -> dict[str, bytes]:
    """Every file of a folder with its bytes."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def after(count: int, error: BaseException) -> Callable[[str, int, int], None]:
    """Progress that raises `error` before the chunk with this number is finished."""

    def tell(stage: str, done: int, total: int) -> None:
        if stage == "encoding chunks" and done == count:
            raise error

    return tell
