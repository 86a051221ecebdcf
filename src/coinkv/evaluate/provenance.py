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
from coinkv.rag.index import Index


def provenance(index: Index, seed: int) -> dict[str, Any]:
    """Facts of a run: command, time, model, how the index was built, versions, machine."""
    return {
        "command": shlex.join(["coinkv", *sys.argv[1:]]),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "model": index.backbone.name,
        "fingerprint": index.backbone.fingerprint,
        "settings": asdict(index.settings),
        "seed": seed,
        "versions": versions(),
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
