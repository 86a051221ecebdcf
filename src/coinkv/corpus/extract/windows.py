"""Windows of so many words as nuggets: what the ends of sentences are worth is measured by them."""

from __future__ import annotations

from dataclasses import dataclass

from coinkv.corpus.extract.base import Extractor
from coinkv.corpus.extract.sentences import WORD
from coinkv.errors import InputError


@dataclass(frozen=True)
class WindowExtractor(Extractor):
    """Consecutive windows of a fixed number of words, wherever sentences end: an ablation.

    Every candidate is a verbatim substring, from the first character of its first word to the last
    of its last one; the last window of a text may be shorter. Windows without a letter or digit are
    dropped, as `SentenceExtractor` does.

    Args:
        words: of a window; a character of a script written without spaces is a word.

    Raises:
        InputError: `words` below 1.
    """

    words: int = 20

    def __post_init__(self) -> None:
        if self.words < 1:
            raise InputError(f"windows of {self.words} words", hint="choose words from 1")

    def extract(self, text: str) -> list[str]:
        """Windows of a text, verbatim, in document order."""
        words = [match.span() for match in WORD.finditer(text)]
        runs = [words[first : first + self.words] for first in range(0, len(words), self.words)]
        windows = [text[run[0][0] : run[-1][1]] for run in runs]
        return [window for window in windows if any(map(str.isalnum, window))]
