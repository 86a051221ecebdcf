"""What an extractor is: one method that proposes candidate nuggets of a text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import ClassVar


class Extractor(ABC):
    """Proposes candidate nuggets of a text; one method to write, `extract`.

    Candidates should be verbatim spans of the text in document order, but need not be:
    `coinkv.corpus.align.align` keeps those that can be found (paper arXiv 2608.07458, Algorithm 1,
    line 1).
    """

    version: ClassVar[int] = 1
    """Raise it when `extract` begins to answer differently for the same options."""

    @property
    def identity(self) -> str:
        """Names the extractor and all its options: equal identities give equal candidates.

        By default the class, its `version` and its public attributes. Override it when an
        attribute's `repr` is not the same in every process, or must not be shown.
        """
        options = sorted(
            (name, value)
            for name, value in vars(self).items()
            if not name.startswith("_") and name != "counts"
        )
        shown = ", ".join(f"{name}={value!r}" for name, value in options)
        return f"{type(self).__qualname__}/{self.version}({shown})"

    @cached_property
    def counts(self) -> dict[str, int]:
        """What happened so far, by name (for example malformed replies); kept by the extractor."""
        return {}

    @abstractmethod
    def extract(self, text: str) -> list[str]:
        """Candidate nuggets of a text, in document order; an empty list when it states nothing.

        Args:
            text: the text of one chunk, without its title header.
        """

    def extract_all(self, texts: Sequence[str]) -> Iterator[list[str]]:
        """Candidates of every text, in the order of `texts`.

        Override it when several texts can be worked on at once.
        """
        for text in texts:
            yield self.extract(text)
