"""Objectives: by which methods a training row's prefix is made; nothing else tells them apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coinkv.errors import InputError
from coinkv.methods.base import Method
from coinkv.methods.links import Linking
from coinkv.methods.mending import Blending
from coinkv.methods.registry import METHODS, method_named
from coinkv.methods.standard_rag import StandardRAG
from coinkv.methods.text_nuggets import TextNuggets

_MOST_LINKS = 1000


@dataclass(frozen=True)
class Objective:
    """How rows are shown to the model. The loss is the same for all: that of the answer's tokens.

    Attributes:
        method: makes the prefix, and answers later with what was learned.
        forms: the methods a row is shown by, in turn and all in one step.
        links: link tokens behind each chunk, whose embeddings are learned, too; 0 without.
    """

    method: Method
    forms: tuple[Method, ...]
    links: int

    @property
    def whole_context(self) -> bool:
        """A form computes its whole context live."""
        return any(isinstance(form, StandardRAG | TextNuggets) for form in self.forms)


def objective_named(name: str, options: Mapping[str, Any]) -> Objective:
    """The objective of a method.

    `coinrag` shows nugget slices (paper arXiv 2608.07458, section 2.5), `turborag` chunk caches
    with reordered or composite positions (arXiv 2410.07590), `block_attention` every row in blocks
    and in full (arXiv 2409.15355), `kvlink` chunk caches with link tokens (arXiv 2502.16002), and
    `standard_rag` the chunks as plain text: the control. Every other method that repairs nothing
    can be trained for, too.

    Args:
        name: of a method.
        options: of that method.

    Raises:
        InputError: there is no such method or option, or it cannot be trained for.
    """
    method = method_named(name, options)
    if isinstance(method, Blending):
        raise InputError(
            f"{name} recomputes tokens it picks while it runs, which cannot be trained through",
            hint=f"train for one of {', '.join(trainable())}: {name} can answer with its adapter",
        )
    links = 0
    if isinstance(method, Linking):
        if method.embeddings is not None:
            raise InputError(
                "link embeddings are given, but training makes them", hint="leave them out"
            )
        links = method.links
        if links > _MOST_LINKS:
            raise InputError(f"links is {links}", hint=f"use at most {_MOST_LINKS}")
    forms = (method, StandardRAG()) if name == "block_attention" else (method,)
    return Objective(method, forms, links)


def trainable() -> list[str]:
    """Names of the methods that can be trained for."""
    return [name for name, method in METHODS.items() if not issubclass(method, Blending)]
