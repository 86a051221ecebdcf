"""How chunk size and boundaries trade hit rate, repair, time and fidelity.

    python benchmarks/chunk_sizes.py --data pycode_bugloc.jsonl --passages hotpotqa.jsonl --out DIR

Four layouts: the three of `coinkv bench boost`, and ten short passages in shuffled order. In each,
the first prompt on a text is computed once and kept by one engine for every configuration; each
later prompt is prefilled in full once and by every engine in turn. Writes DIR/chunk_sizes.jsonl
(resumable), .json, .md and .png.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch

from coinkv.boost.engine import KVBoost
from coinkv.evaluate.boost.layouts import LAYOUTS, sittings
from coinkv.evaluate.boost.prompts import PromptModel, prompt_model
from coinkv.evaluate.boost.run import ANSWER_LEAD
from coinkv.evaluate.boost.texts import asked_texts, spread_over_lengths
from coinkv.evaluate.dataset import read_set
from coinkv.evaluate.provenance import versions
from coinkv.model.load import load

CONFIGURATIONS = (
    *(("content", size) for size in (32, 64, 128, 256, 512)),
    ("fixed", 128),
    ("adaptive", 128),
)
SHOWN = ("exact", "moved", "repaired", "computed", "ttft_ratio", "top1_agreement", "kl")
BUDGET_BYTES = 4 * 10**9


def prompts_of(
    arguments: argparse.Namespace, model: PromptModel
) -> Iterator[tuple[str, str, list[str]]]:
    """Layout, name and prompts of every sitting."""
    texts = asked_texts(read_set(arguments.data), model.count_tokens)
    chosen = spread_over_lengths(texts, arguments.documents, arguments.most_tokens, arguments.seed)
    for layout in LAYOUTS:
        for sitting in sittings(
            layout, chosen, model, lead=ANSWER_LEAD, room=1, seed=arguments.seed
        ):
            yield layout, sitting.name, [asked.prompt for asked in sitting.prompts]
    for row in read_set(arguments.passages).rows[: arguments.documents]:
        draw = random.Random(f"{arguments.seed} {row.id}")
        prompts = []
        for _ in range(4):
            order = draw.sample(row.passages, len(row.passages))
            shown = "\n\n".join(f"{passage.title}\n{passage.text}" for passage in order)
            prompts.append(model.render(f"{shown}\n\nQuestion: {row.question}"))
        yield "short_passages", row.id, prompts


def measured(engines: dict[str, KVBoost], prompts: Sequence[str]) -> Iterator[dict[str, Any]]:
    """One row for every later prompt and engine."""
    reference = next(iter(engines.values()))
    for engine in engines.values():
        engine.invalidate()
    cold = reference.first_token(prompts[0], reuse="exact")
    for engine in engines.values():
        engine.keep(cold)
    for number, prompt in enumerate(prompts[1:], 1):
        full = reference.first_token(prompt, reuse="none")
        expected = full.placed.logits.log_softmax(-1)
        for name, engine in engines.items():
            first = engine.first_token(prompt)
            found = first.placed.logits.log_softmax(-1)
            split = first.placed.split
            engine.keep(first)
            yield {
                "configuration": name,
                "question": number,
                "prompt_tokens": split.total,
                **{kind: getattr(split, kind) / split.total for kind in SHOWN[:4]},
                "ttft_ms": 1000 * first.clock.total_seconds,
                "ttft_ratio": first.clock.total_seconds / full.clock.total_seconds,
                "top1_agreement": float(found.argmax() == expected.argmax()),
                "kl": float((expected.exp() * (expected - found)).sum()),
            }


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means by layout and configuration; the median for the ratio of times."""
    groups = defaultdict(list)
    for row in rows:
        groups[row["layout"], row["configuration"]].append(row)
    facts: dict[str, Any] = defaultdict(dict)
    for (layout, name), group in groups.items():
        facts[layout][name] = {
            **{kind: mean(row[kind] for row in group) for kind in SHOWN},
            "ttft_ratio": median(row["ttft_ratio"] for row in group),
            "questions": len(group),
        }
    return dict(facts)


def table(facts: dict[str, Any]) -> str:
    """The summary in Markdown."""
    lines = [
        "| layout | boundaries | exact | moved | repaired | computed | TTFT / full | top-1 | KL |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for layout, configurations in facts.items():
        for name, of in configurations.items():
            shares = " | ".join(f"{100 * of[kind]:.1f} %" for kind in SHOWN[:4])
            lines.append(
                f"| {layout} | {name} | {shares} | {of['ttft_ratio']:.3f} | "
                f"{100 * of['top1_agreement']:.0f} % | {of['kl']:.4f} |"
            )
    return "\n".join(lines) + "\n"


def plot(facts: dict[str, Any], to: Path) -> None:
    """Reused share and TTFT ratio against the target of `content`."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (shares, times) = pyplot.subplots(1, 2, figsize=(10, 4))
    sizes = [size for boundaries, size in CONFIGURATIONS if boundaries == "content"]
    for layout, configurations in facts.items():
        of = [configurations[f"content {size}"] for size in sizes]
        shares.plot(sizes, [each["exact"] + each["moved"] for each in of], "o-", label=layout)
        times.plot(sizes, [each["ttft_ratio"] for each in of], "o-", label=layout)
    for axes, label in ((shares, "share not computed (exact or moved)"), (times, "TTFT / full")):
        axes.set(xscale="log", xlabel="target tokens of a chunk", ylabel=label, ylim=(0, None))
        axes.set_xticks(sizes, [str(size) for size in sizes])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    shares.legend()
    figure.tight_layout()
    figure.savefig(to, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--passages", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--documents", type=int, default=6)
    parser.add_argument("--most-tokens", type=int, default=2600)
    parser.add_argument("--repair", default="selective")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    log = arguments.out / "chunk_sizes.jsonl"
    rows = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    done = {(row["layout"], row["sitting"]) for row in rows}
    backbone = load(arguments.model)
    engines = {
        f"{boundaries} {size}": KVBoost.from_pretrained(
            backbone,
            budget_bytes=BUDGET_BYTES,
            boundaries=boundaries,
            chunk_tokens=size,
            repair=arguments.repair,
        )
        for boundaries, size in CONFIGURATIONS
    }
    model = prompt_model(arguments.model, device=None, dtype=None)
    for layout, name, prompts in prompts_of(arguments, model):
        if (layout, name) in done:
            continue
        found = [{"layout": layout, "sitting": name, **row} for row in measured(engines, prompts)]
        rows += found
        with log.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in found)
        print(layout, name, len(rows), file=sys.stderr)
    facts = summary(rows)
    made = {
        "command": " ".join(["python", *sys.argv]),
        "threads": torch.get_num_threads(),
        "versions": versions(),
        "layouts": facts,
    }
    (arguments.out / "chunk_sizes.json").write_text(json.dumps(made, indent=2) + "\n")
    (arguments.out / "chunk_sizes.md").write_text(table(facts))
    plot(facts, arguments.out / "chunk_sizes.png")


if __name__ == "__main__":
    main()
