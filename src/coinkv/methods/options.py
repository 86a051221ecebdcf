"""Options: a value as a person types it, read as the type that a method's field has."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from coinkv.errors import InputError

_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def parsed(option: str, value: Any, kind: Any) -> Any:
    """A value for an option of this type.

    Args:
        option: the option's name.
        value: as typed (`"0.3"`, `"true"`, `"none"`), or already of the type.
        kind: bool, int, float, str, a `Literal`, or one of these `| None`.

    Raises:
        InputError: the value is not of the type.
    """
    if get_origin(kind) in (Union, UnionType):
        if value is None or (isinstance(value, str) and value.lower() == "none"):
            return None
        (kind,) = (part for part in get_args(kind) if part is not NoneType)
    if get_origin(kind) is Literal:
        choices = get_args(kind)
        chosen = next((c for c in choices if value == c or str(value) == str(c)), value)
        require_one_of(option, chosen, choices)
        return chosen
    try:
        return _plain(value, kind)
    except (TypeError, ValueError, KeyError, OverflowError) as error:
        raise InputError(
            f"{option} is {value!r}", hint=f"give a value of type {kind.__name__}"
        ) from error


def is_bounded(kind: Any) -> bool:
    """Whether an option takes numbers or one of some values: what may be any text may be a file."""
    parts = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    plain = (bool, int, float, NoneType)
    return all(get_origin(part) is Literal or part in plain for part in parts)


def require_one_of(option: str, value: Any, allowed: Sequence[Any]) -> None:
    """Refuse a value that an option does not take.

    Raises:
        InputError: it is none of those allowed.
    """
    if value not in allowed:
        choices = ", ".join(map(str, allowed))
        raise InputError(f"{option} is {value!r}", hint=f"use one of {choices}")


def _plain(value: Any, kind: type) -> Any:
    if kind is bool:
        return value if isinstance(value, bool) else _WORDS[str(value).lower()]
    if isinstance(value, bool):
        raise TypeError(value)
    if kind is float:
        number = float(value)
        if not math.isfinite(number):
            raise ValueError(value)
        return number
    if kind is int and isinstance(value, float) and not value.is_integer():
        raise ValueError(value)
    return kind(value)
