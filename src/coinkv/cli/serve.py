"""`coinkv serve`: an OpenAI-compatible server with a page, over the documents of its users."""

from __future__ import annotations

import re
import webbrowser
from pathlib import Path
from typing import Annotated, Any

import typer

from coinkv.cli import options as shared
from coinkv.cli.output import console
from coinkv.errors import InputError


def serve_command(
    index: Annotated[
        list[Path] | None,
        typer.Option("--index", help="An index to serve; may be repeated."),
    ] = None,
    docs: Annotated[
        Path | None, typer.Option(help="A folder of documents to index and serve.")
    ] = None,
    model: shared.Model = None,
    adapter: Annotated[
        str | None,
        typer.Option(help="LoRA adapter to answer questions over an index with: folder or name."),
    ] = None,
    no_adapter: shared.NoAdapter = False,
    host: Annotated[str | None, typer.Option(help="Address. Default 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0: a free one. Default 8000.")] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Where keys, uploads, indexes and KV are kept.")
    ] = None,
    open_access: Annotated[
        bool, typer.Option("--open-access", help="Serve other machines without API keys.")
    ] = False,
    browser: Annotated[bool, typer.Option("--browser", help="Open the page in a browser.")] = False,
    device: shared.Device = None,
    dtype: shared.Dtype = None,
    max_context: shared.MaxContext = None,
    threads: shared.Threads = None,
) -> None:
    """Serve an OpenAI-compatible API, a documents API and a page.

    Everything else is set by environment variables COINKV_SERVE_...; see docs/server/operations.md.
    """
    settings = _settings(
        indexes=tuple(index) if index else None,
        docs=docs,
        model=model,
        adapter=adapter,
        host=host,
        port=port,
        data_dir=data_dir,
        open_access=open_access or None,
        device=device,
        dtype=dtype,
        max_context=max_context,
        threads=threads,
    )
    if no_adapter:
        shared.adapter_chosen(None if adapter is None else Path(adapter), no_adapter)
        settings = settings.model_copy(update={"adapter": None})
    shared.use_threads(settings.threads)
    from coinkv.serve.run import run_server

    def on_listening(url: str) -> None:
        console.print(f"coinkv serves {settings.model} at {url}", soft_wrap=True)
        console.print(f"the page: {url}/   the API: {url}/v1   stop: Ctrl-C", soft_wrap=True)
        if browser:
            webbrowser.open(url)

    run_server(settings, on_listening)


def _settings(**given: Any) -> Any:
    """Settings from options, then from the environment.

    Raises:
        InputError: the extra is not installed, or a value cannot be used.
    """
    try:
        from pydantic import ValidationError
        from pydantic_settings import SettingsError

        from coinkv.serve.settings import ServeSettings
    except ImportError as error:
        raise InputError(
            "the server is not installed", hint="run: pip install 'coinkv[serve]'"
        ) from error
    try:
        return ServeSettings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        raise InputError(
            f"{name} is {first['input']!r}: {first['msg']}",
            hint=f"it comes from an option, or from COINKV_SERVE_{name.split('.')[0].upper()}",
        ) from error
    except SettingsError as error:
        field = re.search(r'field "(\w+)"', str(error))
        raise InputError(
            "this is no JSON",
            where=f"COINKV_SERVE_{field[1].upper()}" if field else "the environment",
            hint="""give lists as '["a", "b"]' and tables as '{"a": "b"}'""",
        ) from error
