"""Answering with a LoRA adapter: on the index's KV as it is, or on KV encoded with the adapter."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

from coinkv.errors import InputError
from coinkv.methods.base import Workbench
from coinkv.model.adapter import adapted, read_card
from coinkv.rag.index import encoded_prefix

AdapterScope = Literal["live", "all"]


def adapted_bench(bench: Workbench, folder: Path, scope: AdapterScope | None) -> Workbench:
    """The same prompt and chunks, answered with an adapter.

    Args:
        bench: an index's workbench.
        folder: the adapter's folder.
        scope: `live` leaves the blocks to the model without adapter; `all` has them encoded with
            it, under keys of their own. None: as the adapter's card says, else `live`.

    Raises:
        InputError: no such scope, or an adapter that does not fit the model.
    """
    if scope not in (None, "live", "all"):
        raise InputError(f"adapter_scope is {scope!r}", hint="use 'live' or 'all'")
    view = adapted(bench.backbone, folder)
    card = read_card(folder)
    if (scope or (card.scope if card else None) or "live") == "live":
        return replace(bench, backbone=view)
    blocks = replace(bench.blocks, backbone=view, prefix=encoded_prefix(view, bench.prompt))
    return replace(bench, blocks=blocks, backbone=view)
