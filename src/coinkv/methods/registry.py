"""The methods by name: the papers' own, and those that other packages register."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from importlib.metadata import entry_points
from typing import Any, TypeGuard, get_type_hints

from coinkv.errors import InputError
from coinkv.methods.base import Method
from coinkv.methods.block_attention import BlockAttention
from coinkv.methods.cacheblend import CacheBlend
from coinkv.methods.coinrag import CoinRAG
from coinkv.methods.coinrag_cacheblend import CoinRAGCacheBlend
from coinkv.methods.coinrag_kvlink import CoinRAGKVLink
from coinkv.methods.epic import EPIC
from coinkv.methods.kvlink import KVLink
from coinkv.methods.options import parsed
from coinkv.methods.standard_cag import StandardCAG
from coinkv.methods.standard_rag import StandardRAG
from coinkv.methods.text_nuggets import TextNuggets
from coinkv.methods.turborag import TurboRAG

METHODS: dict[str, type[Method]] = {
    method.name: method
    for method in (
        StandardRAG,
        TextNuggets,
        StandardCAG,
        TurboRAG,
        BlockAttention,
        CacheBlend,
        EPIC,
        KVLink,
        CoinRAG,
        CoinRAGCacheBlend,
        CoinRAGKVLink,
    )
}
ENTRY_POINTS = "coinkv.methods"
"""Group of entry points by which another package adds a method: its name, and the class."""


def method_names() -> list[str]:
    """Names of all methods, those of other packages last."""
    return [*METHODS, *(name for name in _registered_names() if name not in METHODS)]


def method_class(name: str) -> type[Method]:
    """The class of a method.

    Raises:
        InputError: there is no method of this name, or its package cannot be loaded.
    """
    if name in METHODS:
        return METHODS[name]
    for entry in entry_points(group=ENTRY_POINTS):
        if entry.name == name:
            try:
                found = entry.load()
            except Exception as error:  # whatever the other package does when it is imported
                raise InputError(f"the method {name!r} cannot be loaded ({error})") from error
            if not _is_method(found):
                raise InputError(
                    f"the entry point {entry.value} is no method",
                    hint="it must name a dataclass derived from coinkv.methods.base.Method, with a "
                    "name and a unit",
                )
            return found
    raise InputError(
        f"no method is called {name!r}", hint=f"use one of {', '.join(method_names())}"
    )


def method_named(name: str, options: Mapping[str, Any] | None = None) -> Method:
    """A method with some of its options, given as they are or as text.

    Raises:
        InputError: there is no such method or option, or a value does not fit.
    """
    chosen = method_class(name)
    known = option_types(chosen)
    arguments = {}
    for option, value in (options or {}).items():
        if option not in known:
            there_are = f"its options are {', '.join(known)}" if known else "it has none"
            raise InputError(f"{name} has no option {option!r}", hint=there_are)
        arguments[option] = parsed(option, value, known[option])
    return chosen(**arguments)


def option_types(method: type[Method]) -> dict[str, Any]:
    """The options of a method's class with their types, in order.

    Raises:
        InputError: they cannot be told.
    """
    try:
        hints = get_type_hints(method)
    except (NameError, TypeError) as error:
        what = f"the options of {method.name!r} cannot be understood ({error})"
        raise InputError(what) from error
    return {field.name: hints[field.name] for field in fields(method)}  # type: ignore[arg-type]


def options_of(method: Method) -> dict[str, Any]:
    """The options of a method that differ from its defaults, by name."""
    options = {}
    for field in fields(method):  # type: ignore[arg-type]
        made = field.default_factory
        default = field.default if made is MISSING else made()
        if getattr(method, field.name) != default:
            options[field.name] = getattr(method, field.name)
    return options


def _is_method(found: Any) -> TypeGuard[type[Method]]:
    return (
        isinstance(found, type)
        and issubclass(found, Method)
        and is_dataclass(found)
        and getattr(found, "unit", None) in ("chunk", "nugget")
        and isinstance(getattr(found, "name", None), str)
    )


def _registered_names() -> Iterator[str]:
    for entry in entry_points(group=ENTRY_POINTS):
        yield entry.name
