"""What adapters gain: F1 with and without, over the test halves of sets, with the paired bootstrap.

    python benchmarks/adapter_gain.py --data DATA --indexes DIR --out FILE \
        --ask NAME ADAPTER METHOD ... [--pair WITH WITHOUT ...] [--card FOLDER WITH WITHOUT]

DIR holds an index `<set>/sentences` of each set, as benchmarks/multihop.sh leaves them. ADAPTER is
`none` or what `--adapter` takes; METHOD is a method's name, perhaps with options, such as
`turborag:positions=composite`. Every question is asked greedily with k_c = 5 and k = 10. Results of
a FILE that is there are kept and not asked again. `--card` writes the gains into a card.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from coinkv.evaluate.configuration import Configuration
from coinkv.evaluate.dataset import EvalRow, half, read_set
from coinkv.evaluate.run import Asking, run
from coinkv.evaluate.significance import paired_bootstrap
from coinkv.methods.registry import method_class
from coinkv.model.load import load
from coinkv.model.shipped import adapter_folder
from coinkv.rag.index import Index

SETS = ["hotpotqa", "2wikimqa", "musique"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--indexes", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--half", default="test")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--k-chunks", type=int, default=5)
    parser.add_argument("--k-nuggets", type=int, default=10)
    parser.add_argument("--ask", nargs=3, action="append", default=[])
    parser.add_argument("--leads", nargs="+", default=[""])
    parser.add_argument("--pair", nargs=2, action="append", default=[])
    parser.add_argument("--card", nargs=3)
    asked = parser.parse_args()
    rows = json.loads(asked.out.read_text())["rows"] if asked.out.exists() else []
    backbone = None
    for name in asked.sets:
        eval_set = half(read_set(asked.data / f"{name}.jsonl"), asked.half)
        wanted = [
            (title, adapter, method, lead)
            for title, adapter, method in asked.ask
            for lead in asked.leads
            if not any((r["name"], r["set"], r["lead"]) == (title, name, lead) for r in rows)
        ]
        if not wanted:
            continue
        backbone = backbone or load()
        index = Index.open(asked.indexes / name / "sentences", model=backbone)
        for title, adapter, method, lead in wanted:
            row = answered(index, eval_set.rows[: asked.limit], adapter, method, lead, asked)
            rows.append({"name": title, "set": name, "half": asked.half, "lead": lead, **row})
            print(name, title, repr(lead), f"F1 {row['f1']:.1f}", flush=True)
            write(asked.out, rows, [])
    pairs = [difference(rows, *pair, lead) for pair in asked.pair for lead in leads(rows)]
    write(asked.out, rows, [pair for pair in pairs if pair])
    for pair in filter(None, pairs):
        print(
            f"{pair['with']} - {pair['without']} ({pair['lead']!r}): {pair['mean']:+.1f} "
            f"({pair['low']:+.1f} to {pair['high']:+.1f}), {pair['questions']} questions"
        )
    if asked.card:
        fill_card(adapter_folder(asked.card[0]), rows, *asked.card[1:])


def answered(
    index: Index,
    questions: tuple[EvalRow, ...],
    adapter: str,
    method: str,
    lead: str,
    asked: argparse.Namespace,
) -> dict:
    name, _, given = method.partition(":")
    options = dict(each.split("=") for each in given.split(",") if each)
    nuggets = asked.k_nuggets if method_class(name).unit == "nugget" else None
    folder = None if adapter == "none" else adapter_folder(adapter)
    facts = run(
        index,
        questions,
        Configuration(name, asked.k_chunks, nuggets, tuple(options.items())),
        Asking(answer_lead=lead, batch=16, adapter=folder),
    )
    kept = ("questions", "f1", "exact_match", "answer_recall", "len_tokens", "adapter_digest")
    return {
        "method": method,
        "adapter": None if folder is None else folder.name,
        **{key: facts[key] for key in kept if key in facts},
        "f1_of": {each["id"]: round(each["f1"], 2) for each in facts["per_question"]},
    }


def leads(rows: list[dict]) -> list[str]:
    return list(dict.fromkeys(row["lead"] for row in rows))


def difference(rows: list[dict], first: str, second: str, lead: str) -> dict | None:
    """The mean over the sets of one asking minus another, with the same first words."""
    values = [
        {
            (r["set"], i): f1
            for r in rows
            if (r["name"], r["lead"]) == key
            for i, f1 in r["f1_of"].items()
        }
        for key in ((first, lead), (second, lead))
    ]
    if not all(values):
        return None
    found = paired_bootstrap(*values)
    means = [mean_f1(rows, name, lead) for name in (first, second)]
    return {"with": first, "without": second, "lead": lead, "f1": means, **vars(found)}


def mean_f1(rows: list[dict], name: str, lead: str) -> float:
    values = [row["f1"] for row in rows if (row["name"], row["lead"]) == (name, lead)]
    return sum(values) / len(values)


def write(path: Path, rows: list[dict], pairs: list[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n  ".join(json.dumps(row) for row in rows)
    path.write_text(
        f'{{"rows": [\n  {lines}\n],\n"pairs": {json.dumps(pairs, indent=1)}}}\n', encoding="utf-8"
    )


def fill_card(folder: Path, rows: list[dict], first: str, second: str) -> None:
    path = folder / "coinkv_adapter.json"
    card = json.loads(path.read_text(encoding="utf-8"))
    found = {(row["name"], row["set"]): row for row in rows if row["lead"] == ""}
    kept = [gain for gain in card["gain"] if not gain["set"].endswith(" (test half)")]
    card["gain"] = kept + [
        {
            "set": f"{name} (test half)",
            "questions": found[first, name]["questions"],
            "asked_of": "an index",
            "method": found[first, name]["method"],
            "f1_without": found[second, name]["f1"],
            "f1_with": found[first, name]["f1"],
            "len_tokens": found[first, name]["len_tokens"],
        }
        for name in SETS
        if (first, name) in found
    ]
    path.write_text(json.dumps(card, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
