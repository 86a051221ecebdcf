"""coinkv: encode text once, keep its KV, answer from slices moved into place."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coinkv.boost.engine import KVBoost
    from coinkv.boost.result import BoostResult, PlanSummary, ReuseSplit
    from coinkv.boost.verify import VerifyReport
    from coinkv.errors import CoinKVError
    from coinkv.model.decode import Sampling
    from coinkv.model.load import load
    from coinkv.rag.answer import Answer, Evidence
    from coinkv.rag.ask import CoinRAG
    from coinkv.rag.build import BuildOptions, BuildReport, build
    from coinkv.rag.index import Index

__version__ = "0.1.0"

_HOMES = {
    "Answer": "coinkv.rag.answer",
    "BoostResult": "coinkv.boost.result",
    "BuildOptions": "coinkv.rag.build",
    "BuildReport": "coinkv.rag.build",
    "CoinKVError": "coinkv.errors",
    "CoinRAG": "coinkv.rag.ask",
    "Evidence": "coinkv.rag.answer",
    "Index": "coinkv.rag.index",
    "KVBoost": "coinkv.boost.engine",
    "PlanSummary": "coinkv.boost.result",
    "ReuseSplit": "coinkv.boost.result",
    "Sampling": "coinkv.model.decode",
    "VerifyReport": "coinkv.boost.verify",
    "build": "coinkv.rag.build",
    "load": "coinkv.model.load",
}

__all__ = [
    "Answer",
    "BoostResult",
    "BuildOptions",
    "BuildReport",
    "CoinKVError",
    "CoinRAG",
    "Evidence",
    "Index",
    "KVBoost",
    "PlanSummary",
    "ReuseSplit",
    "Sampling",
    "VerifyReport",
    "build",
    "load",
]


def __getattr__(name: str) -> Any:
    # imported when first used: `import coinkv` and `coinkv --help` stay free of torch
    if name not in _HOMES:
        raise AttributeError(f"module 'coinkv' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
