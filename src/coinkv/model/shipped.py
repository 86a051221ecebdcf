"""Adapters by name: those that ship in the package, and those kept in the user's folder."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from pathlib import Path

from coinkv.config import home
from coinkv.errors import ModelNotFoundError, StorageError

CARD = "coinkv_adapter.json"
"""File beside an adapter that says what coinkv must know of it."""
SHIPPED = Path(__file__).parents[1] / "shipped_adapters"
"""Folder of the adapters that ship in the package, a folder each."""
NAME_CHARACTERS = 100
"""Most characters shown of a name that a file or folder gives an adapter."""
_FILES = (CARD, "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin")
_MOST_NAMED = 8
_UNPRINTABLE = ("Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp")
"""Categories of Unicode: control, format, unassigned, private, surrogate, line and paragraph."""


def users_adapters() -> Path:
    """Where adapters lie that can be called by name: `adapters` in `coinkv.config.home()`."""
    return home() / "adapters"


def adapters_in(folder: Path) -> dict[str, Path]:
    """The adapters in a folder, each a folder by name; none where it does not exist.

    What holds any file of an adapter counts: one may be damaged.

    Raises:
        StorageError: the folder cannot be read.
    """
    try:
        inside = sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise StorageError(
            f"cannot be read ({error.strerror or error})",
            where=folder,
            hint="allow this user to read it",
        ) from error
    return {path.name: path for path in inside if holds_adapter(path)}


def holds_adapter(folder: Path) -> bool:
    """Whether any file of an adapter lies in a folder."""
    try:
        return any((folder / name).is_file() for name in _FILES)
    except OSError:  # not allowed to look
        return False


def named_adapters() -> dict[str, Path]:
    """Folders of the adapters that have a name; a shipped one goes before the user's of that name.

    Raises:
        StorageError: the user's folder cannot be read.
    """
    return {**adapters_in(users_adapters()), **adapters_in(SHIPPED)}


def is_named(folder: Path) -> bool:
    """Whether an adapter lies where it can be called by its folder's name."""
    return folder.absolute().parent in (SHIPPED, users_adapters().absolute())


def adapter_folder(adapter: str | Path) -> Path:
    """The folder of an adapter, given as such or by name; a folder that exists goes first.

    Raises:
        ModelNotFoundError: there is neither such a folder nor such a name; says what names are.
    """
    try:
        path = Path(adapter).expanduser()
        if path.is_dir():
            return path
    except (OSError, RuntimeError) as error:
        raise _unknown(
            adapter, f"not a name of a folder: {getattr(error, 'strerror', None) or error}", ()
        ) from error
    named = named_adapters()
    if str(adapter) in named:
        return named[str(adapter)]
    raise _unknown(adapter, "no such adapter folder, and no adapter of this name", named)


def printable(text: str, most: int) -> str:
    """A text as one line that a terminal may have: what is not printable is escaped.

    Control characters could change what a terminal shows, and those of direction (U+202E) the order
    of what stands beside them.

    Args:
        text: from a file that anyone may have written.
        most: characters; a longer text is cut.
    """
    cut = text if len(text) <= most else f"{text[: most - 3]}..."
    return "".join(
        character.encode("unicode_escape").decode()
        if unicodedata.category(character) in _UNPRINTABLE
        else character
        for character in cut
    )


def _unknown(adapter: str | Path, what: str, names: Iterable[str]) -> ModelNotFoundError:
    listed = sorted(names)
    hint = "name a Hugging Face PEFT folder"
    if listed:
        more = ", ..." if len(listed) > _MOST_NAMED else ""
        hint += f", or one of {', '.join(listed[:_MOST_NAMED])}{more}"
    return ModelNotFoundError(what, where=str(adapter)[:200], hint=hint)
