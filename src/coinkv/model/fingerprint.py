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
        data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        digest.update(xxhash.xxh3_128_digest(data))
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


def _lasting(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration without what names a file, a library version or an output option."""
    passing = {"_name_or_path", "transformers_version", "use_cache", "dtype", "torch_dtype"}
    return {
        str(key): _lasting(value) if isinstance(value, dict) else value
        for key, value in config.items()
        if key not in passing and not str(key).startswith(("output_", "return_"))
    }
