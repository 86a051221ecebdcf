"""What can be said of an adapter in a folder before it is loaded, damaged ones included."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coinkv.errors import InputError, StorageError
from coinkv.model import shipped
from coinkv.model.adapter import AdapterCard, read_card
from coinkv.model.lora import read_settings

OWN_PASSAGES = "own passages"
"""On a card, `asked_of` of a score whose questions were each asked of their own passages."""
_MOST_GAIN = 100.0  # F1 points there are
_MOST_QUESTIONS = 10**9


@dataclass(frozen=True)
class Gain:
    """F1 with an adapter, less F1 without it.

    Attributes:
        f1: points, the mean over sets.
        questions: of all sets together.
    """

    f1: float
    questions: int


@dataclass(frozen=True)
class AdapterEntry:
    """An adapter as a list of adapters shows it.

    Attributes:
        name: of its folder.
        folder: where it lies.
        size_bytes: of its files.
        card: its card, if it has one.
        settings: fields of its `peft.LoraConfig`; empty where it is damaged.
        damage: why it cannot be used, if it cannot.
    """

    name: str
    folder: Path
    size_bytes: int
    card: AdapterCard | None
    settings: dict[str, Any]
    damage: str | None = None

    @property
    def is_shipped(self) -> bool:
        """It came with the package."""
        return self.folder.parent == shipped.SHIPPED

    @property
    def is_default(self) -> bool:
        """It is used by default on the model it was trained on."""
        return self.is_shipped and self.card is not None and self.card.is_default

    @property
    def gain(self) -> Gain | None:
        """What it gains on average over the sets on its card, asked as it was trained to be.

        Scores of questions asked of their own passages, which chose its weights, count only where
        its card has no others. None where its card does not tell.
        """
        measured = self._fact("gain", list) or []
        rows = [row for row in measured if isinstance(row, dict)]
        rows = [row for row in rows if row.get("method") == self._fact("method", str)] or rows
        rows = [row for row in rows if row.get("asked_of") != OWN_PASSAGES] or rows
        try:
            gains = [float(row["f1_with"]) - float(row["f1_without"]) for row in rows]
            questions = sum(int(row["questions"]) for row in rows)
        except (KeyError, TypeError, ValueError, OverflowError):
            return None
        if not (gains and 0 < questions <= _MOST_QUESTIONS and max(map(abs, gains)) <= _MOST_GAIN):
            return None
        return Gain(sum(gains) / len(gains), questions)

    def to_dict(self) -> dict[str, Any]:
        """What a list says of it, JSON-ready."""
        gain = self.gain
        return {
            "name": self.name,
            "folder": str(self.folder),
            "base": self._fact("base", str),
            "method": self._fact("method", str),
            "scope": self.card.scope if self.card else None,
            "rank": self.settings.get("r"),
            "bytes": self.size_bytes,
            "f1_gain": None if gain is None else gain.f1,
            "f1_gain_questions": None if gain is None else gain.questions,
            "shipped": self.is_shipped,
            "default": self.is_default,
            "damage": self.damage,
        }

    def _fact(self, name: str, kind: type) -> Any:
        value = self.card.facts.get(name) if self.card else None
        return value if isinstance(value, kind) else None


def adapter_entry(folder: Path) -> AdapterEntry:
    """Look an adapter up in its folder; its weights are not read.

    Raises:
        StorageError: the folder cannot be read.
    """
    name, size = folder.resolve().name, sum(files_of(folder).values())
    card, settings, damage = None, {}, None
    try:
        card, settings = read_card(folder), read_settings(folder)
    except InputError as error:
        damage = str(error)
    return AdapterEntry(name, folder, size, card, settings, damage)


def adapter_entries(*others: Path) -> list[AdapterEntry]:
    """The adapters that ship, those of the user's folder, and those of other folders.

    Args:
        others: folders of adapters, or adapters themselves.

    Raises:
        StorageError: a folder cannot be read.
    """
    places = (shipped.SHIPPED, shipped.users_adapters(), *others)
    return [
        adapter_entry(folder)
        for place in places
        for folder in (
            [place] if shipped.holds_adapter(place) else shipped.adapters_in(place).values()
        )
    ]


def files_of(folder: Path) -> dict[str, int]:
    """Every file in a folder by its path in it, with its size in bytes.

    Raises:
        StorageError: the folder cannot be read.
    """
    try:
        return {
            path.relative_to(folder).as_posix(): path.stat().st_size
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }
    except OSError as error:
        raise StorageError(f"cannot be read ({error.strerror or error})", where=folder) from error
