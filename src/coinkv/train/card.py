"""The card: what is told of a result, as facts beside its weights and as text for people."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import coinkv
from coinkv.config import CHUNK_TOKENS, DEFAULT_K_CHUNKS, DEFAULT_K_NUGGETS, DEFAULT_MODEL
from coinkv.methods.registry import options_of
from coinkv.model.adapter import base_facts
from coinkv.model.adapter_entry import OWN_PASSAGES
from coinkv.model.backbone import Backbone, dtype_name
from coinkv.model.embedded import HUB_NAME
from coinkv.train.data import TrainingRow
from coinkv.train.learner import lora_settings
from coinkv.train.loop import Learned
from coinkv.train.objectives import Objective
from coinkv.train.options import RunRows, TrainingOptions
from coinkv.train.recipe import Recipe

LINK_FILE = "link_embeddings.safetensors"
"""File of the link tokens' embeddings beside what was learned with them."""
_TAKES = {
    "live": "what is computed for a question only: KV that is there stays valid",
    "all": "all that is computed, chunks included: KV is encoded with it",
}


def begun_with(
    options: TrainingOptions, objective: Objective, rows: RunRows, base: Backbone
) -> dict[str, Any]:
    """All that decides what a run learns, JSON-ready: equal facts give equal weights."""
    return {
        "recipe": _resolved(options.recipe, objective),
        "training rows": digest(rows.data.rows),
        "development rows": digest(rows.dev),
        "evaluate_every": options.watch.evaluate_every,
        "patience": options.watch.patience,
        "keep": options.watch.keep,
        "answer_tokens": options.watch.answer_tokens,
        "chunk_tokens": options.chunk_tokens,
        "model": base.fingerprint,
    }


def digest(rows: Sequence[TrainingRow]) -> str:
    """Hex digest of rows, their texts included."""
    hashed = hashlib.sha256()
    for each in rows:
        row = each.row
        passages = [[p.title, p.text, p.is_supporting] for p in row.passages]
        facts = [each.set_name, row.id, row.question, row.answers, passages]
        hashed.update(json.dumps(facts).encode())
    return hashed.hexdigest()


def card(
    name: str,
    options: TrainingOptions,
    objective: Objective,
    rows: RunRows,
    base: Backbone,
    learned: Learned,
) -> dict[str, Any]:
    """The facts of a result, JSON-ready, under a name unless the options give one.

    An adapter's have `base_fingerprint`, `base_weights` and `scope`, which
    `coinkv.model.adapter.read_card` wants; those of a whole model only the fingerprint of what it
    was. `steps` are those behind the weights that were kept, `steps_run` all.
    """
    recipe = options.recipe
    adapter = recipe.weights == "lora"
    facts = {
        "name": name,
        "base": Path(base.name).name if Path(base.name).is_dir() else base.name,
        **(base_facts(base) if adapter else {"base_fingerprint": base.fingerprint}),
        **({"scope": "all" if recipe.through_cache else "live"} if adapter else {}),
        "dtype": dtype_name(base.dtype),
        "method": objective.method.name,
        "method_options": options_of(objective.method),
        "data": dict(rows.data.facts),
        "recipe": _resolved(recipe, objective),
        **({"links": LINK_FILE} if objective.links else {}),
        "chunk_tokens": options.chunk_tokens,
        "steps": learned.best_step,
        "steps_run": learned.steps,
        "rows": len(rows.data.rows),
        "answer_tokens": learned.answer_tokens,
        "training_seconds": round(learned.seconds, 1),
        "gain": _gain(options, objective, rows, learned),
        "made": datetime.now(UTC).date().isoformat(),
        "coinkv": coinkv.__version__,
    }
    return facts | given_facts(options)


def given_facts(options: TrainingOptions) -> dict[str, Any]:
    """What a card says because it was asked to, as far as it was."""
    given = {
        "name": options.name,
        "licence": options.licence,
        "attribution": list(options.attribution) or None,
    }
    return {name: value for name, value in given.items() if value is not None}


def _resolved(recipe: Recipe, objective: Objective) -> dict[str, Any]:
    """The recipe with what it leaves to be found out."""
    alpha = lora_settings(recipe)["lora_alpha"] if recipe.weights == "lora" else recipe.alpha
    found = {"options": options_of(objective.method), "alpha": alpha}
    return {**recipe.to_dict(), **found, "learning_rate": recipe.peak_rate}


def _gain(
    options: TrainingOptions, objective: Objective, rows: RunRows, learned: Learned
) -> list[dict[str, Any]]:
    """Development scores before and after, each question asked of its own passages."""
    first, best = learned.first, learned.best
    if first is None or best is None:
        return []
    names = ", ".join(dict.fromkeys(row.set_name for row in rows.dev))
    halves = sorted({each.half for each in options.dev} - {"all"})
    part = f" ({', '.join(halves)} half)" if halves else "" if options.dev else " (held out)"
    return [
        {
            "set": f"{names}{part}",
            "questions": best.questions,
            "asked_of": OWN_PASSAGES,
            "method": objective.method.name,
            "f1_without": first.f1,
            "f1_with": best.f1,
        }
    ]


def readme(facts: Mapping[str, Any]) -> str:
    """The card for people, as Markdown with the front matter that model hubs read."""
    adapter = "scope" in facts
    lines = [
        "---",
        f"base_model: {json.dumps(HUB_NAME if facts['base'] == DEFAULT_MODEL else facts['base'])}",
        f"library_name: {'peft' if adapter else 'transformers'}",
        *([f"license: {json.dumps(facts['licence'])}"] if "licence" in facts else []),
        f"tags: [coinkv, {'lora, ' if adapter else ''}question-answering]",
        "---",
        "",
        f"# {facts['name']}",
        "",
        f"A {'LoRA adapter' if adapter else 'model'} that answers questions from documents by the "
        f"method `{facts['method']}`, trained on `{facts['base']}` with `coinkv train` "
        f"(coinkv {facts['coinkv']}, {facts['made']}).",
        "",
        *_training(facts),
        "",
        "## Use",
        "",
        *_use(facts),
    ]
    if "attribution" in facts:
        lines += ["", "## Data", "", *(f"- {text}" for text in facts["attribution"])]
    return "\n".join([*lines, ""])


def _training(facts: Mapping[str, Any]) -> list[str]:
    recipe = facts["recipe"]
    drawn = ", ".join(f"{each['drawn']:,} rows of {each['set']}" for each in facts["data"]["sets"])
    kept = facts["steps"]
    steps = (
        f"{kept:,} steps"
        if kept == facts["steps_run"]
        else (f"{facts['steps_run']:,} steps, of which the weights behind step {kept:,} were kept")
    )
    lines = [
        f"- Learned from {drawn}; at most {recipe['micro_batch'] * recipe['accumulation']} rows a "
        f"step, {steps}.",
    ]
    if "scope" in facts:
        lines.append(f"- It takes part in {_TAKES[facts['scope']]} (scope `{facts['scope']}`).")
    for gain in facts["gain"]:
        lines.append(
            f"- {gain['set']}, {gain['questions']} questions asked of their {OWN_PASSAGES}: F1 "
            f"{gain['f1_without']:.1f} before, {gain['f1_with']:.1f} after."
        )
    if recipe["answer_lead"]:
        lines.append(f"- Answers begin with `{recipe['answer_lead']}`.")
    return lines


def _use(facts: Mapping[str, Any]) -> list[str]:
    return ["```console", *(f"$ {line}" for line in commands(facts, "THIS_FOLDER")), "```"]


def commands(facts: Mapping[str, Any], folder: str) -> list[str]:
    """Command lines that answer by the method with what a run left in a folder."""
    adapter = "scope" in facts
    recipe, base = facts["recipe"], facts["base"] if adapter else folder
    build = ["coinkv", "build", "DOCS", "--index", "DIR"]
    build += _unless_default("--model", base, DEFAULT_MODEL)
    build += _unless_default("--chunk-tokens", facts["chunk_tokens"], CHUNK_TOKENS)
    ask = ["coinkv", "ask", "QUESTION", "--index", "DIR", "--method", facts["method"]]
    options = dict(facts["method_options"])
    if "links" in facts:
        options["embeddings"] = f"{folder}/{facts['links']}"
    for name, value in options.items():
        ask += ["--option", f"{name}={str(value).lower() if isinstance(value, bool) else value}"]
    ask += _unless_default("--k-chunks", recipe["k_chunks"], DEFAULT_K_CHUNKS)
    ask += _unless_default("--k-nuggets", recipe["k_nuggets"], DEFAULT_K_NUGGETS)
    ask += _unless_default("--answer-lead", recipe["answer_lead"], "")
    ask += ["--adapter", folder] if adapter else []
    return [shlex.join(build), shlex.join(ask)]


def _unless_default(option: str, value: object, default: object) -> list[str]:
    return [] if value == default else [option, str(value)]
