"""How figures look, and how they become files: the same figure, the same bytes."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from coinkv.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SETTINGS: dict[str, Any] = {
    "text.parse_math": False,  # names come from data and users
    "svg.fonttype": "none",  # text stays text: it can be searched and read aloud
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#888888",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "legend.frameon": False,
}


def rendered(name: str, title: str, draw: Callable[[], Figure], *, extra: str) -> dict[str, bytes]:
    """A figure as the contents of files, by suffix: `svg` and `png`.

    The same figure gives the same bytes.

    Args:
        name: of the files.
        title: for those who have the picture read aloud.
        draw: makes the figure.
        extra: the optional dependencies that bring matplotlib.

    Raises:
        InputError: matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise InputError(
            "figures need matplotlib, which is not installed",
            hint=f"run: pip install 'coinkv[{extra}]'",
        ) from error
    contents = {}
    settings: Any = {**_SETTINGS, "svg.hashsalt": name}
    with matplotlib.rc_context(settings):
        figure = draw()
        for suffix, metadata in (("svg", {"Date": None, "Title": title}), ("png", None)):
            file = io.BytesIO()
            figure.savefig(file, format=suffix, dpi=200, metadata=metadata, facecolor="white")
            contents[suffix] = file.getvalue()
    return contents
