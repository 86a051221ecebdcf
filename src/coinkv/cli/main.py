"""The `coinkv` command: its commands, and what an error looks like to the person who typed it."""

from __future__ import annotations

import errno
import sys
from typing import Annotated

import typer

from coinkv import __version__
from coinkv.cli import ask, bench, build, check, demo, index
from coinkv.cli.output import console
from coinkv.errors import CoinKVError

app = typer.Typer(
    name="coinkv",
    help="Encode documents once, keep their KV cache, answer questions from slices of it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("build")(build.build_command)
app.command("ask")(ask.ask_command)
app.command("demo")(demo.demo_command)
app.command("check")(check.check_command)
app.add_typer(index.app, name="index")
app.add_typer(bench.app, name="bench")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"coinkv {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print it.", is_eager=True, callback=_print_version),
    ] = False,
) -> None:
    """Encode documents once, keep their KV cache, answer questions from slices of it."""


def main() -> None:
    """Run a command; an expected error becomes one line on stderr and an exit code.

    Exit codes: 0 done, 1 something failed (a broken index, a full disk), 2 bad input, 130
    interrupted.
    """
    try:
        app()
    except CoinKVError as error:
        _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        _fail("interrupted; finished work is kept, the same command goes on from there", 130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS):
            raise
        _fail(f"{error.filename or 'storage'}: {error.strerror}; free space or permissions", 1)


def _fail(line: str, exit_code: int) -> None:
    console.print(f"[bold red]error:[/] {_escaped(line)}", soft_wrap=True, highlight=False)
    sys.exit(exit_code)


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)
