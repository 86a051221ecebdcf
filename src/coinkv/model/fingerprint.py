"""The fingerprint: digest of all that KV depends on, so that another model never matches."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch
import xxhash

from coinkv.kv.rope import Rope

FORMAT_VERSION = 1
"""Version of what a KV block means; a change makes every stored block foreign."""


def model_digest(model: Any, text_tokenizer: Any) -> str:
    """Hex digest of weights, configuration, computing dtype and tokenizer.

    Args:
        model: a Hugging Face model whose weights are on the CPU (each byte is read once).
        text_tokenizer: its `tokenizers.Tokenizer`.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(_content(tensor.detach().cpu()))
    digest.update(
        json.dumps(_lasting(model.config.to_dict()), sort_keys=True, default=str).encode()
    )
    digest.update(str(model.dtype).encode())
    digest.update(text_tokenizer.to_str().encode())
    return digest.hexdigest()


def fingerprint(digest: str, rope: Rope) -> str:
    """Hex fingerprint of a model with the rotation that was measured on it."""
    frequencies = rope.inv_freq.float().cpu().contiguous().numpy().tobytes()
    facts = f"{digest} {rope.layout} {list(rope.inv_freq.shape)} kv-format {FORMAT_VERSION} "
    return hashlib.sha256(facts.encode() + frequencies).hexdigest()


def form_digest(model: Any, text_tokenizer: Any, rope: Rope) -> str:
    """Hex digest of what stays when a model is loaded in another dtype, except its weights.

    Names and shapes of the weights, the vocabulary, and the rotation to three significant digits:
    the same on any device and by any version of the libraries.
    """
    facts = {
        "shapes": {name: list(tensor.shape) for name, tensor in model.state_dict().items()},
        "vocabulary": text_tokenizer.get_vocab(with_added_tokens=True),
        "layout": rope.layout,
        "frequencies": [f"{value:.3g}" for value in rope.inv_freq.flatten().tolist()],
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def weights_digest(model: Any, dtype: torch.dtype) -> str:
    """Hex digest of a model's weights as they are once rounded to a dtype.

    Weights that were loaded in float32 have the digests of all dtypes: rounding is what loading in
    a narrower dtype does. Those loaded in 16 bit have, for certain, that of their own dtype.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        rounded = tensor.detach().cpu()
        rounded = rounded.to(dtype) if rounded.is_floating_point() else rounded
        digest.update(name.encode() + _content(rounded))
    return digest.hexdigest()


def _content(tensor: torch.Tensor) -> bytes:
    data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data
    return xxhash.xxh3_128_digest(data)


def _lasting(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration without what names a file, a library version or an output option."""
    passing = {"_name_or_path", "transformers_version", "use_cache", "dtype", "torch_dtype"}
    return {
        str(key): _lasting(value) if isinstance(value, dict) else value
        for key, value in config.items()
        if key not in passing and not str(key).startswith(("output_", "return_"))
    }
