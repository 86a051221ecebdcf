"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from coinkv.errors import InputError, ModelNotFoundError
from coinkv.model import shipped
from coinkv.model.shipped import adapter_folder, adapters_in

if TYPE_CHECKING:
    from coinkv.evaluate.dataset import Half
    from coinkv.rag.adapters import AdapterScope

IndexFolder = Annotated[Path, typer.Option("--index", help="The index folder.")]
Model = Annotated[
    str | None,
    typer.Option(help="Backbone: hub name or folder. Default: the index's, or the embedded one."),
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda or mps. Default: the best there is.")]
Dtype = Annotated[str | None, typer.Option(help="float32, float16 or bfloat16.")]
MaxContext = Annotated[
    int | None, typer.Option(help="Promise to stay within so many tokens of context.")
]
Threads = Annotated[int | None, typer.Option(help="CPU threads to compute with.")]
KChunks = Annotated[int | None, typer.Option(help="Chunks retrieved (k_c). Default 5.")]
KNuggets = Annotated[int | None, typer.Option(help="Nuggets retrieved (k). Default 10.")]
MethodName = Annotated[
    str, typer.Option("--method", help="How the context is made; a wrong name lists all.")
]
MethodOptions = Annotated[
    list[str] | None,
    typer.Option("--option", help="An option of the method as NAME=VALUE; may be repeated."),
]
Adapter = Annotated[
    Path | None,
    typer.Option(help="LoRA adapter to answer with: a folder, or a name in `adapters list`."),
]
NoAdapter = Annotated[
    bool, typer.Option("--no-adapter", help="Answer without the adapter that ships for the model.")
]
AdapterScopeName = Annotated[
    str | None,
    typer.Option(
        "--adapter-scope",
        help="What the adapter takes part in: live, or all. Default: its card's, or live.",
    ),
]
Limit = Annotated[int | None, typer.Option(help="Only the first so many questions.")]
AnswerTokens = Annotated[int, typer.Option(help="Most tokens of an answer.")]
AnswerLead = Annotated[str, typer.Option(help="First words of every answer, given to the model.")]
ScoredLead = Annotated[
    str | None,
    typer.Option(
        "--answer-lead",
        help="First words of every answer. Default: the adapter's card's, or 'The answer is:'.",
    ),
]
Batch = Annotated[int, typer.Option(help="Answers decoded together.")]
OrderSeed = Annotated[int, typer.Option("--seed", help="Seed of the order of timed queries.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]

_MOST_THREADS = 1024  # the threads' stacks of many more end the process


def use_threads(threads: int | None) -> None:
    """Set the number of CPU threads of the model's computations.

    Raises:
        InputError: below 1, or more than any machine has.
    """
    if threads is None:
        return
    if not 1 <= threads <= _MOST_THREADS:
        raise InputError(f"threads is {threads}", hint=f"use 1 to {_MOST_THREADS}")
    import torch

    torch.set_num_threads(threads)


def method_options(given: list[str] | None) -> dict[str, Any]:
    """Options of a method as typed, by name.

    Raises:
        InputError: one is not NAME=VALUE, or a name comes twice.
    """
    options: dict[str, Any] = {}
    for text in given or []:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise InputError(f"--option {text!r} is not NAME=VALUE", hint="such as ratio=0.3")
        if name.strip() in options:
            raise InputError(f"--option {name.strip()} is given twice", hint="give it once")
        options[name.strip()] = value.strip()
    return options


def require_at_least(name: str, value: int | None, least: int) -> None:
    """Refuse a number that is too small.

    Raises:
        InputError: it is.
    """
    if value is not None and value < least:
        raise InputError(f"{name} is {value}", hint=f"use {least} or more")


def half_named(text: str) -> Half:
    """A half of a set by its name.

    Raises:
        InputError: there is no such half.
    """
    if text not in ("dev", "test", "all"):
        raise InputError(f"there is no half {text!r}", hint="use dev, test or all")
    return cast("Half", text)


def adapter_chosen(adapter: Path | None, no_adapter: bool) -> Path | str | None:
    """The adapter to answer with: the one given, none, or by default the one that ships.

    Where `default` is named, and is no folder, that one is wanted: no other model does.

    Raises:
        ModelNotFoundError: there is no such folder or name.
        InputError: one is given, and none is wanted.
    """
    if adapter is not None and no_adapter:
        raise InputError("--adapter and --no-adapter are both given", hint="give one of them")
    if adapter is None:
        return None if no_adapter else "default"
    if str(adapter) == "default" and not adapter.is_dir():
        return _shipped_default()
    return adapter_folder(adapter)


def _shipped_default() -> Path:
    from coinkv.model.adapter import read_card

    for folder in adapters_in(shipped.SHIPPED).values():
        card = read_card(folder)
        if card is not None and card.is_default:
            return folder
    raise ModelNotFoundError("no adapter ships as a default", hint="name another one")


def lead_for(given: str | None, adapter: Path | None) -> str:
    """First words of answers that are scored: those given, else those the adapter learned behind.

    Raises:
        ModelNotFoundError: there is no such adapter.
        InputError: its card is damaged.
    """
    from coinkv.evaluate.run import ANSWER_LEAD
    from coinkv.model.adapter import read_card

    if given is not None:
        return given
    card = None if adapter is None else read_card(adapter)
    learned = None if card is None else card.answer_lead
    return ANSWER_LEAD if learned is None else learned


def scope_named(text: str | None) -> AdapterScope | None:
    """The scope of an adapter by its name.

    Raises:
        InputError: there is no such scope.
    """
    if text not in (None, "live", "all"):
        raise InputError(f"there is no adapter scope {text!r}", hint="use live or all")
    return cast("AdapterScope | None", text)
