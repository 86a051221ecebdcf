"""Answering with a LoRA adapter: on the index's KV as it is, or on KV encoded with the adapter."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from coinkv.errors import InputError
from coinkv.methods.base import Workbench
from coinkv.model.adapter import adapted_with_card, default_adapter
from coinkv.model.backbone import Backbone
from coinkv.model.shipped import NAME_CHARACTERS, adapter_folder, is_named, printable
from coinkv.rag.answer import AdapterUsed
from coinkv.rag.index import encoded_prefix

AdapterScope = Literal["live", "all"]
DEFAULT_ADAPTER = "default"
"""Stands for the adapter that ships for the backbone, or for none where none does."""


@dataclass(frozen=True, eq=False)
class LoadedAdapter:
    """An adapter that is loaded and ready to answer with, by as many `CoinRAG` as one likes.

    Attributes:
        used: its name and digest, as answers tell them.
        scope: what it takes part in: what is computed `live`, or `all`, chunks included.
        view: the backbone with the adapter.
    """

    used: AdapterUsed
    scope: AdapterScope
    view: Backbone

    def bench(self, bench: Workbench) -> Workbench:
        """The same prompt and chunks, answered with the adapter.

        Its scope `live` leaves the blocks to the model without adapter; `all` has them encoded with
        it, under keys of their own.

        Raises:
            InputError: it was loaded for another model.
        """
        if self.view.model is not bench.backbone.model:
            raise InputError(
                f"the adapter {self.used.name} was loaded for another model than the index's",
                hint="load it for this index's backbone",
            )
        if self.scope == "live":
            return replace(bench, backbone=self.view)
        prefix = encoded_prefix(self.view, bench.prompt)
        blocks = replace(bench.blocks, backbone=self.view, prefix=prefix)
        return replace(bench, blocks=blocks, backbone=self.view)


def load_adapter(
    backbone: Backbone, adapter: str | Path, scope: AdapterScope | None = None
) -> LoadedAdapter | None:
    """Load an adapter for a backbone, once for any number of questions.

    Args:
        backbone: the model; its own forward passes stay as they are.
        adapter: a folder, the name of an adapter (see `coinkv.model.shipped`), or `"default"`: the
            one that ships for this backbone (a folder called so is `"./default"`).
        scope: None: as the adapter's card says, else `live`.

    Returns:
        None where `"default"` was asked for and no adapter ships for this backbone.

    Raises:
        ModelNotFoundError: there is no such folder or name.
        InputError: no such scope, or an adapter that does not fit the model.
    """
    if scope not in (None, "live", "all"):
        raise InputError(f"adapter_scope is {scope!r}", hint="use 'live' or 'all'")
    is_default = adapter == DEFAULT_ADAPTER
    if is_default and scope == "all":
        raise InputError(
            "the default adapter takes part in what is computed live only",
            hint="leave adapter_scope out, or name the adapter",
        )
    folder = default_adapter(backbone) if is_default else adapter_folder(adapter)
    if folder is None:
        return None
    view, card = adapted_with_card(backbone, folder)
    # what is listed answers under the name it is listed by, whatever its card was called elsewhere
    name = card.name if card and not is_named(folder) else None
    used = AdapterUsed(
        name or printable(folder.resolve().name, NAME_CHARACTERS), view.adapter or ""
    )
    return LoadedAdapter(used, scope or (card.scope if card else "live"), view)


def adapter_for(
    backbone: Backbone,
    adapter: str | Path | LoadedAdapter | None,
    scope: AdapterScope | None = None,
) -> LoadedAdapter | None:
    """The adapter that answers questions, if any does.

    Args:
        backbone: the index's model.
        adapter: as for `load_adapter`, or loaded already, or None.
        scope: as for `load_adapter`; a loaded adapter has its own.

    Raises:
        ModelNotFoundError: there is no such folder or name.
        InputError: it does not fit, or a scope is given that nothing can have.
    """
    if scope is not None and not isinstance(adapter, (str, Path)):
        raise InputError("adapter_scope is given without an adapter to load", hint="name one")
    if isinstance(adapter, (str, Path)):
        return load_adapter(backbone, adapter, scope)
    return adapter


def adapted_bench(bench: Workbench, adapter: str | Path, scope: AdapterScope | None) -> Workbench:
    """The same prompt and chunks, answered with an adapter; arguments as for `load_adapter`.

    Raises:
        ModelNotFoundError: there is no such folder or name.
        InputError: no such scope, or an adapter that does not fit the model.
    """
    loaded = load_adapter(bench.backbone, adapter, scope)
    return bench if loaded is None else loaded.bench(bench)
