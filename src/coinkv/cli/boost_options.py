"""Options of the commands that open KVBoost, and the engine that they describe."""

from __future__ import annotations

import re
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coinkv.config import BOOST_CHUNK_TOKENS
from coinkv.errors import InputError

if TYPE_CHECKING:
    from coinkv.boost.engine import KVBoost
    from coinkv.model.backbone import Backbone

DEFAULT_BUDGET = 2_000_000_000
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class ReuseName(StrEnum):
    """What may be reused."""

    all = "all"
    exact = "exact"
    none = "none"


class RepairName(StrEnum):
    """How moved tokens are repaired."""

    auto = "auto"
    selective = "selective"
    cacheblend = "cacheblend"
    epic = "epic"
    none = "none"


class BoundariesName(StrEnum):
    """How prompts are cut into chunks."""

    content = "content"
    fixed = "fixed"
    adaptive = "adaptive"


class CodecName(StrEnum):
    """How KV is stored."""

    raw = "raw"
    int8 = "int8"
    kivi = "kivi"


def byte_count(given: str | int) -> int:
    """Bytes from a size as people write it: `2GB`, `1.5 MB`, `512MiB`, `1000000`.

    Raises:
        InputError: it is no size.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?(?:([KMGT])(i?))?B?", str(given).strip(), re.IGNORECASE)
    if found is None:
        raise InputError(f"{given!r} is no size", hint="use a size such as 2GB, 500MB or 1000000")
    number, unit, binary = found[1], (found[2] or "").upper(), found[3]
    return int(Decimal(number) * (_BINARY_UNITS[unit] if binary else _UNITS[unit]))


Folder = Annotated[
    Path | None,
    typer.Option(file_okay=False, help="Keep KV here between calls. Default: keep nothing."),
]
KeptFolder = Annotated[Path, typer.Option("--folder", file_okay=False, help="Where KV is kept.")]
Budget = Annotated[
    int,
    typer.Option(
        parser=byte_count,
        metavar="SIZE",
        help="Most KV in memory (2GB, 500MB).",
        show_default="2GB",
    ),
]
DiskBudget = Annotated[
    int | None,
    typer.Option(
        parser=byte_count, metavar="SIZE", help="Most KV in the folder. Default: no limit."
    ),
]
Model = Annotated[
    str,
    typer.Option(
        help="Backbone: hub name or folder. Default: the embedded one.", show_default=False
    ),
]
Repair = Annotated[RepairName, typer.Option(help="How moved tokens are repaired.")]
Boundaries = Annotated[BoundariesName, typer.Option(help="Where chunks end.")]
ChunkTokens = Annotated[int, typer.Option(help="Tokens of a chunk, about.")]
Codec = Annotated[CodecName, typer.Option(help="How KV is stored.")]
Namespace = Annotated[str, typer.Option(help="KV is found again under the same name only.")]
Chat = Annotated[bool, typer.Option("--chat", help="Make a text a user's message.")]


def backbone_named(
    model: str, device: str | None, dtype: str | None, max_context: int | None = None
) -> Backbone:
    """The model that a command line names."""
    from coinkv.model.load import load

    return load(model, device=device, dtype=dtype, max_context=max_context)


def engine_of(
    backbone: Backbone,
    *,
    budget: int = DEFAULT_BUDGET,
    folder: Path | None = None,
    disk_budget: int | None = None,
    codec: CodecName = CodecName.raw,
    boundaries: BoundariesName = BoundariesName.content,
    chunk_tokens: int = BOOST_CHUNK_TOKENS,
    repair: RepairName = RepairName.auto,
    namespace: str = "",
) -> KVBoost:
    """The engine that the options describe; use it in a `with` block."""
    from coinkv.boost.engine import KVBoost

    return KVBoost.from_pretrained(
        backbone,
        budget_bytes=budget,
        folder=folder,
        disk_budget_bytes=disk_budget,
        codec=codec.value,
        boundaries=boundaries.value,
        chunk_tokens=chunk_tokens,
        repair=repair.value,
        namespace=namespace,
    )


def require_folder_for(disk_budget: int | None, folder: Path | None) -> None:
    """Refuse a budget of a disk tier where there is none.

    Raises:
        InputError: there is none.
    """
    if disk_budget is not None and folder is None:
        raise InputError("--disk-budget has nothing to bound", hint="give --folder, too")
