"""What repair costs and gives in long answers: 128 greedy tokens under reordered documents.

    python benchmarks/long_answers.py --data covidqa_long.jsonl --out DIR

Each article is cut into passages; a first prompt holds some of them in order, later prompts the
same in another order with another question. Every strategy continues each later prompt by 128
tokens; so does full prefill. Writes DIR/long_answers.jsonl (resumable), .json and .md.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from coinkv.boost.engine import KVBoost
from coinkv.boost.prefill import FirstToken
from coinkv.evaluate.metrics import token_f1
from coinkv.evaluate.provenance import versions
from coinkv.model.decode import Sampling
from coinkv.model.decode_batch import decode_batch
from coinkv.model.load import load

STRATEGIES = ("none", "selective", "epic", "cacheblend", "auto")
SHOWN = ("top1_agreement", "same_beginning", "token_agreement", "answer_f1", "f1_with_full", "kl")


def passages_of(text: str, words: int) -> list[str]:
    """The text's paragraphs joined to passages of at least so many words."""
    passages, held = [], ""
    for paragraph in re.split(r"\n\s*\n", text):
        held = f"{held}\n\n{paragraph}".strip()
        if len(held.split()) >= words:
            passages.append(held)
            held = ""
    return passages


def prompts_of(
    article: dict[str, Any], arguments: argparse.Namespace
) -> list[tuple[list[dict[str, str]], list[str]]]:
    """Chat messages and right answers: the first in order, the others reordered."""
    passages = passages_of(article["text"], arguments.words)[: arguments.passages]
    draw = random.Random(f"{arguments.seed} {article['id']}")
    made = []
    for number, asked in enumerate(article["qas"][: arguments.questions + 1]):
        order = draw.sample(passages, len(passages)) if number else passages
        shown = "\n\n".join(order)
        content = f"{shown}\n\nExplain in a few sentences: {asked['question']}"
        made.append(([{"role": "user", "content": content}], asked["answers"]))
    return made


def measured(
    boost: KVBoost, article: dict[str, Any], arguments: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """A row for every later question and strategy."""
    boost.invalidate()
    (cold, _), *later = prompts_of(article, arguments)
    boost.warm(cold)
    sampling = Sampling(max_tokens=arguments.tokens)
    for number, (prompt, answers) in enumerate(later):
        firsts = {
            "full": boost.first_token(prompt, answer_tokens=arguments.tokens, reuse="none"),
            **{
                name: boost.first_token(prompt, answer_tokens=arguments.tokens, repair=name)
                for name in STRATEGIES
            },
        }
        decoded = decode_batch(
            boost.backbone,
            [first.placed.live for first in firsts.values()],
            [first.placed.logits for first in firsts.values()],
            sampling,
        )
        texts = dict(zip(firsts, decoded, strict=True))
        for name, first in firsts.items():
            yield {
                "question": number,
                "strategy": name,
                "used": first.intent.strategy,
                **compared(first, firsts["full"]),
                **agreement(texts[name].token_ids, texts["full"].token_ids),
                "answer_f1": token_f1(texts[name].text, answers),
                "f1_with_full": token_f1(texts[name].text, [texts["full"].text]),
                "contains_answer": any(a.lower() in texts[name].text.lower() for a in answers),
            }


def compared(first: FirstToken, full: FirstToken) -> dict[str, Any]:
    """First token, its logits and its time against full prefill."""
    found, expected = (each.placed.logits.log_softmax(-1) for each in (first, full))
    split = first.placed.split
    return {
        "top1_agreement": float(found.argmax() == expected.argmax()),
        "kl": float((expected.exp() * (expected - found)).sum()),
        "ttft_ratio": first.clock.total_seconds / full.clock.total_seconds,
        "prompt_tokens": split.total,
        "reuse": vars(split),
    }


def agreement(tokens: Sequence[int], expected: Sequence[int]) -> dict[str, float]:
    """How far two continuations go together, and at how many places they agree."""
    pairs = list(zip(tokens, expected, strict=False))
    apart = next((at for at, (one, other) in enumerate(pairs) if one != other), len(pairs))
    longest = max(len(tokens), len(expected), 1)
    same = sum(one == other for one, other in pairs)
    return {"same_beginning": apart, "token_agreement": same / longest}


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means by strategy."""
    groups = defaultdict(list)
    for row in rows:
        groups[row["strategy"]].append(row)
    return {
        name: {
            **{kind: mean(row[kind] for row in group) for kind in (*SHOWN, "ttft_ratio")},
            "contains_answer": mean(float(row["contains_answer"]) for row in group),
            "questions": len(group),
        }
        for name, group in groups.items()
    }


def table(facts: dict[str, Any]) -> str:
    """The summary in Markdown."""
    lines = [
        "| strategy | same first token | tokens until they part | tokens that agree | answer F1 "
        "| contains the answer | F1 with full's text | KL of the first token |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, of in facts.items():
        lines.append(
            f"| {name} | {100 * of['top1_agreement']:.0f} % | {of['same_beginning']:.1f} | "
            f"{100 * of['token_agreement']:.1f} % | {of['answer_f1']:.1f} | "
            f"{100 * of['contains_answer']:.0f} % | {of['f1_with_full']:.1f} | {of['kl']:.4f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--articles", type=int, default=12)
    parser.add_argument("--questions", type=int, default=3, help="reordered ones an article")
    parser.add_argument("--passages", type=int, default=6)
    parser.add_argument("--words", type=int, default=150, help="fewest words of a passage")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    log = arguments.out / "long_answers.jsonl"
    rows = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    done = {row["article"] for row in rows}
    boost = KVBoost.from_pretrained(load(arguments.model), budget_bytes=4 * 10**9)
    articles = [json.loads(line) for line in arguments.data.read_text().splitlines()]
    for article in articles[: arguments.articles]:
        if article["id"] in done:
            continue
        found = [{"article": article["id"], **row} for row in measured(boost, article, arguments)]
        rows += found
        with log.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in found)
        print(article["id"], len(rows), file=sys.stderr)
    facts = summary(rows)
    made = {
        "command": " ".join(["python", *sys.argv]),
        "threads": torch.get_num_threads(),
        "versions": versions(),
        "strategies": facts,
    }
    (arguments.out / "long_answers.json").write_text(json.dumps(made, indent=2) + "\n")
    (arguments.out / "long_answers.md").write_text(table(facts))


if __name__ == "__main__":
    main()
