"""The report as one HTML file that needs no other file and no network."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from importlib import resources

from coinkv.errors import InputError
from coinkv.evaluate.report.measured import in_words, measured
from coinkv.evaluate.report.section import Picture, Section


def to_page(sections: Sequence[Section], warnings: Sequence[str]) -> str:
    """The text of `report.html`; everything that comes from the data is escaped.

    Args:
        sections: one for each backbone.
        warnings: about the results files.

    Raises:
        InputError: jinja2 is not installed.
    """
    try:
        from jinja2 import Environment, StrictUndefined
        from markupsafe import Markup
    except ImportError as error:
        raise InputError(
            "the page needs jinja2, which is not installed",
            hint="run: pip install 'coinkv[eval]'",
        ) from error
    source = resources.files(__package__).joinpath("page.html.j2").read_text(encoding="utf-8")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["inline"] = lambda picture: Markup(inline_svg(picture))
    environment.filters["in_words"] = in_words
    environment.filters["measured"] = measured
    return environment.from_string(source).render(sections=sections, warnings=warnings)


def inline_svg(picture: Picture) -> str:
    """A picture's SVG as an element of a page: named, and its ids unlike any other picture's."""
    text = picture.svg.decode()
    text = text[text.index("<svg") :]  # without the XML declaration and document type
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{picture.name}-", text)
    # the page gives it its size
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    name = html.escape(picture.chart.title)
    return text.replace("<svg", f'<svg role="img" aria-label="{name}"', 1)
