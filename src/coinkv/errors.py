"""The one exception family: each error says what was wrong, where, and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar


class CoinKVError(Exception):
    """Base of every error coinkv raises on purpose.

    Args:
        what: what was wrong, in one sentence without a final full stop.
        where: the file, model or option concerned.
        hint: what to do about it, in one sentence without a final full stop.
    """

    exit_code: ClassVar[int] = 1

    def __init__(
        self, what: str, *, where: str | Path | None = None, hint: str | None = None
    ) -> None:
        self.what = what
        self.where = None if where is None else str(where)
        self.hint = hint
        super().__init__(what, self.where, hint)

    def __str__(self) -> str:
        line = self.what if self.where is None else f"{self.where}: {self.what}"
        line = line if self.hint is None else f"{line}; {self.hint}"
        return " ".join(line.split())

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.what, self.where, self.hint))


def _rebuild(
    kind: type[CoinKVError], what: str, where: str | None, hint: str | None
) -> CoinKVError:
    return kind(what, where=where, hint=hint)


class InputError(CoinKVError):
    """Something the caller gave cannot be used as given (CLI exit code 2)."""

    exit_code = 2


class ContextLengthError(InputError):
    """A prompt, with the room for its answer, is longer than the model's context."""


class DocumentError(InputError):
    """A document cannot be read as text."""


class ModelNotFoundError(InputError):
    """No model by this name or at this path."""


class UnsupportedModelError(InputError):
    """The gate refused a model: its KV cannot be moved exactly."""


class IndexNotFoundError(InputError):
    """A folder holds no index, or an unfinished one."""


class DocumentNotFoundError(InputError):
    """An index has no document by this key."""


class JobNotFoundError(InputError):
    """There is no indexing job by this id, or it ended so long ago that it is forgotten."""


class IndexMismatchError(InputError):
    """An index was built by another model, embedder or format version."""


class EndpointError(CoinKVError):
    """An OpenAI-compatible endpoint could not be used."""


class StorageError(CoinKVError):
    """Reading or writing storage failed: no space left, no permission, a broken disk."""


class CorruptBlockError(CoinKVError):
    """A stored block is damaged; it can be recomputed from its text."""


class BusyError(CoinKVError):
    """The server has as much to do as it will take on (HTTP 429).

    Args:
        what: what was wrong.
        retry_after_seconds: when to try again.
    """

    def __init__(self, what: str, *, retry_after_seconds: float) -> None:
        super().__init__(what, hint=f"try again in {retry_after_seconds:.0f} s")
        self.retry_after_seconds = retry_after_seconds

    def __reduce__(self) -> tuple[object, ...]:
        return (_busy, (self.what, self.retry_after_seconds))


def _busy(what: str, retry_after_seconds: float) -> BusyError:
    return BusyError(what, retry_after_seconds=retry_after_seconds)


class DeadlineError(CoinKVError):
    """A request was not done in the time it had (HTTP 504)."""


class NotReadyError(CoinKVError):
    """What was asked for does not exist yet, or no longer: a first build, a shutdown (HTTP 503)."""


class TrainingError(CoinKVError):
    """A run of fine-tuning cannot go on: it has diverged, or its folder belongs to another run."""
