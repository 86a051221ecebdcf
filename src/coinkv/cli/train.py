"""`coinkv train`: fine-tuning by any method's objective, from sets to an adapter or a model."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from coinkv.cli import options as shared
from coinkv.cli.output import print_json, progress
from coinkv.cli.train_report import draw_curves, print_report, print_rows
from coinkv.errors import InputError

if TYPE_CHECKING:
    from coinkv.train.loop import Keep
    from coinkv.train.recipe import Recipe

_OF_AN_ADAPTER = ("rank", "alpha", "dropout", "targets")


def train_command(
    folder: Annotated[
        str, typer.Argument(help="The run's folder; the same command again goes on in it.")
    ],
    data: Annotated[
        list[str],
        typer.Option(help="Set to train on, JSONL or hub name, as NAME or NAME=WEIGHT; repeat it."),
    ],
    rows: Annotated[int | None, typer.Option(help="Rows of an epoch. Default: all.")] = None,
    against: Annotated[
        list[str] | None,
        typer.Option(help="Evaluation set whose questions must not be learned; repeat it."),
    ] = None,
    check_data: Annotated[
        bool, typer.Option("--check-data", help="Say what would be learned from, and stop.")
    ] = False,
    dev: Annotated[
        list[str] | None, typer.Option(help="Set of development questions; repeat it.")
    ] = None,
    dev_half: Annotated[str, typer.Option(help="Half of the development sets to ask.")] = "dev",
    dev_limit: Annotated[
        int | None, typer.Option(help="Only the first so many of each development set.")
    ] = None,
    held_out: Annotated[
        int, typer.Option(help="Rows kept out for development, where --dev names none.")
    ] = 0,
    evaluate_every: Annotated[
        int | None, typer.Option(help="Steps between evaluations. Default: at the end only.")
    ] = None,
    patience: Annotated[
        int | None, typer.Option(help="End after so many evaluations without a better F1.")
    ] = None,
    keep: Annotated[
        str, typer.Option(help="Weights that come out: of the best evaluation, or the last.")
    ] = "best",
    answer_tokens: shared.AnswerTokens = 32,
    checkpoint_every: Annotated[int, typer.Option(help="Steps between checkpoints.")] = 25,
    recipe: Annotated[
        Path | None, typer.Option(help="JSON file of a recipe; options given here go before it.")
    ] = None,
    objective: Annotated[
        str | None, typer.Option(help="Method that makes the prefix. Default coinrag.")
    ] = None,
    option: shared.MethodOptions = None,
    through_cache: Annotated[
        bool | None,
        typer.Option(
            "--through-cache/--frozen-cache",
            help="Learn through the prefix too, or leave it to the base model (default).",
        ),
    ] = None,
    weights: Annotated[
        str | None, typer.Option(help="lora trains an adapter (default), all every weight.")
    ] = None,
    rank: Annotated[int | None, typer.Option(help="Rank of the adapter. Default 16.")] = None,
    alpha: Annotated[
        float | None, typer.Option(help="Scale of the adapter. Default twice the rank.")
    ] = None,
    dropout: Annotated[
        float | None, typer.Option(help="Dropout of the adapter's input. Default 0.")
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(help="Layer to adapt, by its last name; repeat it. Default: all linear ones."),
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="At its highest. Default 3e-4 for LoRA, 5e-6 for all.")
    ] = None,
    warmup: Annotated[
        float | None, typer.Option(help="Share of steps in which the rate rises. Default 0.03.")
    ] = None,
    weight_decay: Annotated[float | None, typer.Option(help="AdamW's. Default 0.")] = None,
    clip: Annotated[float | None, typer.Option(help="Largest gradient norm. Default 1.")] = None,
    micro_batch: Annotated[
        int | None, typer.Option(help="Rows computed together. Default 1.")
    ] = None,
    accumulation: Annotated[
        int | None, typer.Option(help="Micro-batches of a step. Default 16.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the rows. Default 1.")] = None,
    steps: Annotated[int | None, typer.Option(help="End after so many steps.")] = None,
    optimizer: Annotated[
        str | None, typer.Option(help="adamw (default) or adamw8bit (needs bitsandbytes).")
    ] = None,
    checkpointing: Annotated[
        bool | None,
        typer.Option(
            "--checkpointing/--no-checkpointing",
            help="Recompute layers in the backward pass to save memory (default), or keep them.",
        ),
    ] = None,
    max_length: Annotated[
        int | None, typer.Option(help="Most tokens of a row, context included. Default 1024.")
    ] = None,
    k_chunks: shared.KChunks = None,
    k_nuggets: shared.KNuggets = None,
    raft: Annotated[
        float | None, typer.Option(help="Probability to withhold gold evidence. Default 0.15.")
    ] = None,
    answer_lead: Annotated[
        str | None, typer.Option(help="First words of every answer, not learned.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of all that is random. Default 0.")] = None,
    chunk_tokens: Annotated[int, typer.Option(help="Most tokens of a chunk.")] = 512,
    cache: Annotated[
        Path | None,
        typer.Option(help="Folder of encoded passages, shared by runs. Default: in coinkv's home."),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name in the card. Default: the folder's.")
    ] = None,
    licence: Annotated[
        str | None, typer.Option(help="Licence in the card, such as apache-2.0.")
    ] = None,
    attribution: Annotated[
        list[str] | None,
        typer.Option(help="Line of the card on data and its licence; repeat it."),
    ] = None,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write TensorBoard files, too.")
    ] = False,
    model: shared.Model = None,
    device: shared.Device = None,
    dtype: shared.Dtype = None,
    threads: shared.Threads = None,
    json: shared.Json = False,
) -> None:
    """Fine-tune the model for answering behind composed KV; leaves an adapter, or a model.

    Cut off, the same command goes on where the newest checkpoint left off.
    """
    shared.use_threads(threads)
    place = _folder(folder)
    from coinkv.train.data import Source
    from coinkv.train.loop import Watch
    from coinkv.train.objectives import objective_named
    from coinkv.train.options import DevSet, TrainingOptions
    from coinkv.train.run import train

    shared.require_at_least("dev_limit", dev_limit, 1)
    if dev_limit is not None and not dev:
        raise InputError("--dev-limit is given without a development set", hint="add --dev SET")
    half = shared.half_named(dev_half)
    given = {
        "objective": objective,
        "options": shared.method_options(option) or None,
        "through_cache": through_cache,
        "weights": weights,
        "rank": rank,
        "alpha": alpha,
        "dropout": dropout,
        "targets": target,
        "learning_rate": learning_rate,
        "warmup": warmup,
        "weight_decay": weight_decay,
        "clip": clip,
        "micro_batch": micro_batch,
        "accumulation": accumulation,
        "epochs": epochs,
        "steps": steps,
        "optimizer": optimizer,
        "checkpointing": checkpointing,
        "max_length": max_length,
        "k_chunks": k_chunks,
        "k_nuggets": k_nuggets,
        "raft": raft,
        "answer_lead": answer_lead,
        "seed": seed,
    }
    chosen = _recipe(recipe, given)
    objective_named(chosen.objective, chosen.options)
    options = TrainingOptions(
        sources=[Source.parsed(text) for text in data],
        recipe=chosen,
        watch=Watch(checkpoint_every, evaluate_every, patience, answer_tokens, cast("Keep", keep)),
        rows=rows,
        against=tuple(against or ()),
        held_out=held_out,
        dev=[DevSet(each, half, dev_limit) for each in dev or ()],
        cache=cache,
        chunk_tokens=chunk_tokens,
        model=model,
        device=device,
        dtype=dtype,
        name=name,
        licence=licence,
        attribution=tuple(attribution or ()),
        tensorboard=tensorboard,
    )
    found = options.read()
    talks = os.environ.get("RANK", "0") == "0"  # the first of those that torchrun started
    if talks and (check_data or not json):
        print_rows(found, json=json)
    if check_data:
        return
    with progress(quiet=json or not talks) as step, _group_left():
        report = train(place, options, step, rows=found)
    if talks:
        pictures = draw_curves(place)
        if json:
            print_json(report.to_dict())
        else:
            print_report(report, pictures)


@contextmanager
def _group_left() -> Iterator[None]:
    """Leave the group of processes, if there is one: torch aborts at exit while its threads run."""
    from torch import distributed

    try:
        yield
    finally:
        if distributed.is_initialized():
            distributed.destroy_process_group()


def _recipe(file: Path | None, given: dict[str, Any]) -> Recipe:
    """The recipe in a file, or the default one, with what the command line says instead."""
    from coinkv.train.recipe import Recipe

    chosen = {name: value for name, value in given.items() if value is not None}
    kept: dict[str, Any] = {}
    if file is not None:
        kept = Recipe.from_json(_text(file), str(file)).to_dict()
    recipe = Recipe.from_dict({**kept, **chosen}, "the recipe")
    if recipe.weights == "all":
        _require_none_of_an_adapter(chosen)
    return recipe


def _folder(text: str) -> Path:
    if not text.strip():
        raise InputError("the name of the run's folder is empty", hint="name a folder")
    return Path(text)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise InputError(
            f"cannot be read ({getattr(error, 'strerror', None) or error})",
            where=file,
            hint="name a JSON file of a recipe's fields",
        ) from error


def _require_none_of_an_adapter(given: dict[str, Any]) -> None:
    """Refuse what only an adapter has where none is trained."""
    for name in _OF_AN_ADAPTER:
        if name in given:
            raise InputError(
                f"{name} is of an adapter, and all weights are to be trained",
                hint="leave it out, or train with --weights lora",
            )
