"""`coinkv keys`: give out API keys of a server, list them, take them back."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from coinkv.cli import options as shared
from coinkv.cli.output import console, print_json, results
from coinkv.errors import InputError

if TYPE_CHECKING:
    from coinkv.serve.security.keys import Keys

app = typer.Typer(
    help="Give out API keys of a server, list them, take them back.", no_args_is_help=True
)
DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", help="The server's data folder. Default: `coinkv serve`'s."),
]
_UNITS = {"m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1)}


@app.command("add")
def add_command(
    name: Annotated[str, typer.Argument(help="Who it is for; every key has another name.")],
    namespace: Annotated[
        str, typer.Option(help="What it sees: the indexes and KV of this namespace.")
    ] = "default",
    requests_per_minute: Annotated[
        int | None, typer.Option(help="Its limit. Default: the server's.")
    ] = None,
    tokens_per_minute: Annotated[
        int | None, typer.Option(help="Its limit of prompt and answer tokens. Default: none.")
    ] = None,
    expires: Annotated[
        str | None, typer.Option(help="When it ends: 90d, 12h, 30m, or a date (UTC).")
    ] = None,
    data_dir: DataDir = None,
    json: shared.Json = False,
) -> None:
    """Make a key and print it, this once; a running server takes it within about a second."""
    key, secret = _keys(data_dir).add(
        name,
        namespace=namespace,
        expires=None if expires is None else _moment(expires),
        requests_per_minute=requests_per_minute,
        tokens_per_minute=tokens_per_minute,
    )
    if json:
        print_json({**key.to_dict(), "key": secret})
        return
    results.print(secret, markup=False, highlight=False, soft_wrap=True)
    console.print("keep it: it cannot be shown again", highlight=False)


@app.command("list")
def list_command(data_dir: DataDir = None, json: shared.Json = False) -> None:
    """Show whom keys were made for, and what each may; the keys themselves are not kept."""
    keys = _keys(data_dir).all()
    if json:
        print_json({"keys": [key.to_dict() for key in keys]})
        return
    table = Table("name", "namespace", "made", "expires", "requests/min", "tokens/min")
    for key in keys:
        expires = "never" if key.expires is None else _day(key.expires)
        table.add_row(
            key.name,
            key.namespace,
            _day(key.created),
            f"{expires} (past)" if key.expired else expires,
            "" if key.requests_per_minute is None else str(key.requests_per_minute),
            "" if key.tokens_per_minute is None else str(key.tokens_per_minute),
        )
    results.print(table if keys else "no keys")


@app.command("remove")
def remove_command(
    name: Annotated[str, typer.Argument(help="As `keys list` prints it.")],
    data_dir: DataDir = None,
    json: shared.Json = False,
) -> None:
    """Take a key back; a running server refuses it within about a second."""
    key = _keys(data_dir).remove(name)
    if json:
        print_json({"removed": key.name})
    else:
        results.print(f"removed {key.name}", highlight=False)


def _keys(data_dir: Path | None) -> Keys:
    try:
        from coinkv.serve.security.keys import Keys
        from coinkv.serve.settings import ServeSettings
    except ImportError as error:
        hint = "run: pip install 'coinkv[serve]'"
        raise InputError("keys need the packages of the server", hint=hint) from error
    return Keys(data_dir or ServeSettings.model_validate({}).data_dir)


def _moment(text: str) -> int:
    """Seconds since 1970 of a time from now, or of a date.

    Raises:
        InputError: it is neither, or too far away.
    """
    span = re.fullmatch(r"(\d{1,6})([mhd])", text.strip())
    try:
        if span is not None:
            return int((datetime.now(UTC) + int(span[1]) * _UNITS[span[2]]).timestamp())
        given = datetime.fromisoformat(text.strip())
        return int((given if given.tzinfo else given.replace(tzinfo=UTC)).timestamp())
    except (ValueError, OverflowError) as error:
        hint = "such as 90d, 12h, 30m or 2030-12-31"
        raise InputError(f"expires is {text[:80]!r}, not a time", hint=hint) from error


def _day(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d}"
