"""Assignments: what the server tells its indexing process to do, and what it hears back."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

AssignmentKind = Literal["add", "remove", "purge", "docs"]


@dataclass(frozen=True)
class Skipped:
    """A file of which nothing was taken, and why."""

    file: str
    reason: str


@dataclass(frozen=True)
class Assignment:
    """One job, as a line of JSON on the indexing process's standard input.

    Attributes:
        kind: what to do.
        folder: the index folder.
        home: folder of the index's record; work in progress lies there.
        changes: files of changes, oldest first (see `incoming`).
        docs: the folder of documents to follow (`docs` only).
    """

    kind: AssignmentKind
    folder: str
    home: str
    changes: tuple[str, ...] = ()
    docs: str | None = None

    def to_line(self) -> str:
        """One line of JSON, its end included."""
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def from_line(cls, line: str) -> Assignment:
        """What `to_line` gave."""
        facts: dict[str, Any] = json.loads(line)
        return cls(**{**facts, "changes": tuple(facts["changes"])})


@dataclass(frozen=True)
class Outcome:
    """How a job went.

    Attributes:
        published: a new generation can be read.
        documents: keys of the documents that were added, replaced or removed.
        skipped: files of which nothing was taken.
        generation: the generation that can be read now.
    """

    published: bool
    documents: tuple[str, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    generation: int = 0

    @classmethod
    def from_facts(cls, facts: dict[str, Any]) -> Outcome:
        """What `asdict` of an outcome gave, back from JSON."""
        return cls(
            published=facts["published"],
            documents=tuple(facts["documents"]),
            skipped=tuple(Skipped(**each) for each in facts["skipped"]),
            generation=facts["generation"],
        )
