"""What a run was made with, apart from its questions: the key by which results are compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coinkv.errors import InputError

DEFAULT_INDEX = "sentences"
_SHORT = {"ratio": "r"}  # as in the paper's "#" column


@dataclass(frozen=True)
class Configuration:
    """A method with its settings on one index (paper arXiv 2608.07458, Table 3's "#" column).

    Args:
        method: its registered name.
        k_chunks: chunks retrieved.
        k_nuggets: nuggets retrieved; None for a method whose unit is the chunk.
        options: the options that differ from the method's defaults; kept sorted by name, lists
            as tuples, so that equal configurations are equal and hash alike.
        index: label of the index the method was run on.
        adapter: name of the adapter, if one was used.
    """

    method: str
    k_chunks: int
    k_nuggets: int | None
    options: tuple[tuple[str, Any], ...] = ()
    index: str = DEFAULT_INDEX
    adapter: str | None = None

    def __post_init__(self) -> None:
        frozen = sorted((name, _frozen(value)) for name, value in dict(self.options).items())
        object.__setattr__(self, "options", tuple(frozen))

    @property
    def label(self) -> str:
        """All but the method: `3, 10, r=0.3`, then an index or adapter that is not the default."""
        parts = [str(self.k_chunks)]
        if self.k_nuggets is not None:
            parts.append(str(self.k_nuggets))
        parts += [f"{_SHORT.get(name, name)}={_text(value)}" for name, value in self.options]
        if self.index != DEFAULT_INDEX:
            parts.append(f"index={self.index}")
        if self.adapter is not None:
            parts.append(f"adapter={self.adapter}")
        return ", ".join(parts)

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Configuration:
        """The configuration that a row of a results file was made with.

        Raises:
            InputError: a field is missing or of the wrong type.
        """
        return cls(
            method=_field(row, "method", str),
            k_chunks=_field(row, "k_chunks", int),
            k_nuggets=_field(row, "k_nuggets", int, type(None)),
            options=tuple(_field(row, "options", dict).items()),
            index=_field(row, "index", str),
            adapter=_field(row, "adapter", str, type(None)),
        )


def _field(row: Mapping[str, Any], name: str, *kinds: type) -> Any:
    if name not in row:
        raise InputError(f"the row has no `{name}`")
    value = row[name]
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise InputError(f"`{name}` is {value!r}")
    return value


def _frozen(value: Any) -> Any:
    if isinstance(value, Mapping):
        return tuple(sorted((name, _frozen(inner)) for name, inner in value.items()))
    if isinstance(value, list | tuple):
        return tuple(_frozen(inner) for inner in value)
    return value


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return "+".join(_text(inner) for inner in value)
    return f"{value:g}" if isinstance(value, float) else str(value)
