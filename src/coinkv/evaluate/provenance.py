"""Provenance: what is noted with every measurement so that it can be repeated."""

from __future__ import annotations

import platform
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import numpy as np
import torch

from coinkv import __version__
from coinkv.methods.base import Workbench
from coinkv.rag.ask import CoinRAG
from coinkv.rag.index import Index


def provenance(asker: CoinRAG, seed: int) -> dict[str, Any]:
    """Facts of a run that begins now: command, time, model, device, index, adapter, versions."""
    backbone = asker.index.backbone
    return {
        "command": shlex.join(["coinkv", *sys.argv[1:]]),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "model": backbone.name,
        "fingerprint": backbone.fingerprint,
        "device": str(backbone.device),
        **made_with(asker.index, asker.bench),
        "answer_lead": asker.answer_lead,
        "seed": seed,
        "versions": versions(),
    }


def made_with(index: Index, bench: Workbench) -> dict[str, Any]:
    """What a run depends on that neither its configuration nor the backbone's fingerprint tells.

    How the index was built, and of an adapter, which the configuration only names, the digest of
    its content and its scope.
    """
    digest = bench.backbone.adapter
    scope = "all" if bench.blocks.backbone.adapter else "live"
    return {
        "settings": asdict(index.settings),
        "adapter_digest": digest,
        "adapter_scope": scope if digest else None,
    }


def versions() -> dict[str, Any]:
    """What a measurement was made with."""
    import transformers

    return {
        "coinkv": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "machine": f"{platform.system()} {platform.machine()}",
        "threads": torch.get_num_threads(),
    }


def spread_ms(seconds: Sequence[float]) -> dict[str, float]:
    """Mean, median and 99th percentile in milliseconds."""
    values = 1000 * np.asarray(seconds)
    return {
        "mean": float(values.mean()),
        "p50": float(np.percentile(values, 50)),
        "p99": float(np.percentile(values, 99)),
    }
