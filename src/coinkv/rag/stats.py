"""Stats: what an index holds, without loading its model."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from coinkv.rag.index import BLOCKS, open_published
from coinkv.store.disk import DiskStore


def stats(folder: Path) -> dict[str, Any]:
    """JSON-ready facts about an index.

    Raises:
        IndexNotFoundError: there is no finished index.
    """
    catalogue, settings, generation = open_published(folder)
    try:
        totals = catalogue.stats()
        keys = [document.key for document in catalogue.documents()]
    finally:
        catalogue.close()
    store = DiskStore(folder / BLOCKS)
    return {
        "documents": totals.documents,
        "chunks": totals.chunks,
        "tokens": totals.tokens,
        "nuggets": {
            "exact": totals.exact,
            "fuzzy": totals.fuzzy,
            "abandoned": totals.abandoned,
            "coverage": totals.coverage,
        },
        "kv_bytes": store.total_bytes(),
        "blocks": len(list(store.keys())),
        "generation": generation,
        "settings": asdict(settings),
        "document_keys": keys,
    }
