"""Blocks for the tests of the store, and where the disk tier keeps them."""

from __future__ import annotations

from pathlib import Path

import torch

KEY = "ab" + "0" * 62
OTHER_KEY = "cd" + "1" * 62


def block(
    tokens: int, *, dtype: torch.dtype = torch.float16, heads: int = 2, dim: int = 4, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    kv = torch.randn(tokens, 3, 2, heads, dim, generator=generator).to(dtype)
    return kv, torch.randint(0, 10_000, (tokens,), generator=generator)


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def path_of(root: Path, key: str = KEY) -> Path:
    return root / key[:2] / f"{key}.safetensors"


def files_in(root: Path) -> list[str]:
    return sorted(path.name for path in root.rglob("*") if path.is_file())
