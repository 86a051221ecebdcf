"""The `coinkv` command: its commands, and what an error looks like to the person who typed it."""

from __future__ import annotations

import gc
import io
import os
import sys
from typing import Annotated, Any, NoReturn

import typer
from rich.text import Text

from coinkv import __version__
from coinkv.cli import (
    adapters,
    ask,
    bench,
    boost,
    build,
    check,
    demo,
    generate,
    index,
    inspect,
    keys,
    report,
    serve,
    sweep,
    train,
)
from coinkv.cli import eval as evaluation
from coinkv.cli.output import console
from coinkv.errors import CoinKVError
from coinkv.model.allocator import keep_freed_memory

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
app.command("eval")(evaluation.eval_command)
app.command("sweep")(sweep.sweep_command)
app.command("report")(report.report_command)
app.command("inspect")(inspect.inspect_command)
app.command("generate")(generate.generate_command)
app.command("serve")(serve.serve_command)
app.command("train")(train.train_command)
app.add_typer(adapters.app, name="adapters")
app.add_typer(boost.app, name="boost")
app.add_typer(index.app, name="index")
app.add_typer(keys.app, name="keys")
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
    keep_freed_memory()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character is no error
    try:
        exit_code = app(prog_name="coinkv", standalone_mode=False)
        sys.stdout.flush()
    except CoinKVError as error:
        _fail(str(error), error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        exit_code = 130
    except BrokenPipeError:
        _leave_quietly()
    except OSError as error:
        _fail(f"{error.filename or 'storage'}: {error.strerror or error}", 1)
    except Exception as error:
        # typer's usage errors have their class in different places in different versions
        if not hasattr(error, "format_message"):
            raise
        _fail_usage(error)
    if exit_code == 130:
        gc.collect()  # torch aborts when tensors of an interrupted pass outlive the interpreter
        resumable = {"build": "build", "demo": "build", "sweep": "sweep", "train": "training"}
        work = next((resumable[name] for name in sys.argv[1:2] if name in resumable), None)
        goes_on = f"; the {work} goes on where it was when the same command is run again"
        _fail(f"interrupted{goes_on if work else ''}", 130)
    sys.exit(exit_code)


def _fail(line: str, exit_code: int) -> NoReturn:
    console.print(Text.assemble(("error: ", "bold red"), line), soft_wrap=True)
    sys.exit(exit_code)


def _fail_usage(error: Any) -> NoReturn:
    said = " ".join(error.format_message().split())
    if said:  # no arguments at all: the help has been printed already
        _fail(f"{said.rstrip('.')}; see: {error.ctx.command_path} --help", error.exit_code)
    sys.exit(error.exit_code)


def _leave_quietly() -> NoReturn:
    """Exit after the reader of our output has gone, without a complaint at the last flush."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(1)
