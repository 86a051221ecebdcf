"""The methods by name: whoever adds one adds a line here."""

from __future__ import annotations

from coinkv.errors import InputError
from coinkv.methods.base import Method
from coinkv.methods.coinrag import CoinRAG
from coinkv.methods.standard_cag import StandardCAG
from coinkv.methods.standard_rag import StandardRAG

METHODS: dict[str, type[Method]] = {
    method.name: method for method in (StandardRAG, StandardCAG, CoinRAG)
}


def method_named(name: str) -> Method:
    """A method with its default options.

    Raises:
        InputError: there is no method of this name.
    """
    if name not in METHODS:
        raise InputError(f"no method is called {name!r}", hint=f"use one of {', '.join(METHODS)}")
    return METHODS[name]()
