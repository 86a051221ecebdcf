"""Evidence on a terminal: each chunk with its nuggets highlighted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from coinkv.cli.output import results

if TYPE_CHECKING:
    from coinkv.rag.answer import Evidence
    from coinkv.rag.index import Index


def show_evidence(index: Index, evidence: Sequence[Evidence]) -> None:
    """Print the chunks the evidence lies in, nuggets highlighted (bracketed in plain text)."""
    chunks: dict[tuple[str, int], list[Evidence]] = {}
    for piece in evidence:
        chunks.setdefault((piece.document, piece.chunk), []).append(piece)
    for (document, number), pieces in chunks.items():
        first = pieces[0]
        best = max(piece.score for piece in pieces)
        results.print()
        results.print(
            Text(
                f"{document}, chunk {number}, characters {first.chunk_start} to "
                f"{first.chunk_end} ({best:.2f})",
                style="bold cyan",
            ),
            soft_wrap=True,
        )
        text = index.catalogue.document(document).text[first.chunk_start : first.chunk_end]
        plain = not results.is_terminal
        shown = highlighted(text, first.chunk_start, pieces, plain=plain)
        results.print(shown, soft_wrap=plain)


def highlighted(text: str, offset: int, pieces: Sequence[Evidence], *, plain: bool) -> Text:
    """A chunk's text with the pieces' characters styled, or in [[ ]] where there is no style."""
    spans = sorted((piece.start - offset, piece.end - offset) for piece in pieces)
    shown, at = Text(), 0
    for start, end in spans:
        start = max(start, at)
        if end <= start:
            continue
        shown.append(text[at:start], style="dim")
        nugget = text[start:end]
        shown.append(f"[[{nugget}]]" if plain else nugget, style="black on yellow")
        at = end
    return shown.append(text[at:], style="dim")
