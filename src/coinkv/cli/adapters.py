"""`coinkv adapters`: which LoRA adapters there are, and what one of them is."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coinkv.cli import options as shared
from coinkv.cli.output import counted, print_json, results, size
from coinkv.errors import InputError
from coinkv.model.shipped import NAME_CHARACTERS, adapter_folder, printable

if TYPE_CHECKING:
    from coinkv.model.adapter_entry import AdapterEntry

_LINE_CHARACTERS = 2000
app = typer.Typer(help="List LoRA adapters, and show what one of them is.", no_args_is_help=True)


@app.command("list")
def list_command(
    folder: Annotated[
        list[Path] | None,
        typer.Option(help="Look in this folder of adapters, too; may be repeated."),
    ] = None,
    json: shared.Json = False,
) -> None:
    """List the adapters that ship with coinkv and those in `adapters` of $COINKV_HOME."""
    from coinkv.model.adapter_entry import adapter_entries

    for place in folder or []:
        if not place.is_dir():
            raise InputError("there is no such folder", where=place, hint="check the path")
    entries = adapter_entries(*(folder or []))
    if json:
        print_json({"adapters": [entry.to_dict() for entry in entries]})
        return
    for entry in entries:
        _say(f"{printable(entry.name, NAME_CHARACTERS)}: {_told(entry)}")
    if not entries:
        _say("no adapters")


@app.command("show")
def show_command(
    adapter: Annotated[Path, typer.Argument(help="Its folder, or a name that is listed.")],
    model: Annotated[
        str | None, typer.Option(help="Load this backbone and try whether the adapter fits it.")
    ] = None,
    json: shared.Json = False,
) -> None:
    """Show an adapter's card, digest, settings and files."""
    from coinkv.model.adapter_entry import adapter_entry, files_of
    from coinkv.model.lora import read_lora

    folder = adapter_folder(adapter)
    lora, entry = read_lora(folder), adapter_entry(folder)
    if entry.damage is not None:
        raise InputError(entry.damage)
    facts = {
        **{key: value for key, value in entry.to_dict().items() if key != "damage"},
        "digest": lora.digest,
        "files": files_of(folder),
        "settings": lora.settings,
        "card": None if entry.card is None else entry.card.to_dict(),
        "fit": None if model is None else _fit(folder, model),
    }
    if json:
        print_json(facts)
    else:
        _print(facts)


def _fit(folder: Path, model: str) -> dict[str, Any]:
    """Whether a model can answer with an adapter, found out by loading both."""
    from coinkv.model.adapter import adapted
    from coinkv.model.load import load

    backbone = load(model)
    reason = None
    try:
        adapted(backbone, folder)
    except InputError as error:
        reason = str(error)
    return {
        "model": backbone.name,
        "fingerprint": backbone.fingerprint,
        "fits": reason is None,
        "reason": reason,
    }


def _told(entry: AdapterEntry) -> str:
    if entry.damage is not None:
        return f"damaged: {entry.damage}"
    facts = entry.to_dict()
    said = {"for": facts["base"], "trained as": facts["method"], "scope": facts["scope"]}
    parts = [
        f"{word} {printable(fact, NAME_CHARACTERS)}"
        for word, fact in said.items()
        if fact is not None
    ]
    parts += [f"rank {facts['rank']}", size(entry.size_bytes)]
    if facts["f1_gain"] is not None:
        questions = counted(facts["f1_gain_questions"], "question")
        parts.append(f"F1 {facts['f1_gain']:+.1f} over {questions}")
    return ", ".join([*parts, "default"] if entry.is_default else parts)


def _print(facts: dict[str, Any]) -> None:
    _say(f"{printable(facts['name'], NAME_CHARACTERS)}, in {facts['folder']}")
    _say(f"digest {facts['digest']}")
    for name, count in facts["files"].items():
        _say(f"file {name}, {size(count)}")
    for part in ("settings", "card"):
        shown = facts[part]
        told = "none" if shown is None else jsonlib.dumps(shown, ensure_ascii=False, indent=2)
        for line in f"{part}: {told}".split("\n"):
            _say(line)
    fit = facts["fit"]
    if fit is not None:
        _say(f"it fits {fit['model']}" if fit["fits"] else f"it does not fit: {fit['reason']}")


def _say(line: str) -> None:
    results.print(printable(line, _LINE_CHARACTERS), markup=False, highlight=False, soft_wrap=True)
