"""Does it help to encode chunks behind the system prompt? F1 of both ways on the dev halves.

    python benchmarks/encode_after.py --data DIR --out results.json [--sets hotpotqa 2wikimqa]

DIR holds JSONL files of the evaluation schema (id, question, answers, passages). Each set's dev
half (even hash of the id) is one corpus. Prints and writes token F1 a method and way.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import string
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from coinkv.evaluate.ttft import versions
from coinkv.model.decode import Sampling
from coinkv.model.load import load
from coinkv.rag.ask import CoinRAG
from coinkv.rag.build import BuildOptions
from coinkv.rag.index import Index


def in_dev_half(row):
    return int(hashlib.sha256(str(row["id"]).encode()).hexdigest(), 16) % 2 == 0


def normalised(text):
    kept = "".join(c for c in text.lower() if c not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", kept).split()


def token_f1(answer, truth):
    a, b = normalised(answer), normalised(truth)
    common = sum((Counter(a) & Counter(b)).values())
    if not common:
        return 0.0
    precision, recall = common / len(a), common / len(b)
    return 2 * precision * recall / (precision + recall)


def measure(index, rows, method):
    asker = CoinRAG(index, method=method, sampling=Sampling(max_tokens=32))
    scores, lengths = [], []
    for row in rows:
        answer = asker.ask(row["question"])
        scores.append(max(token_f1(answer.text, truth) for truth in row["answers"]))
        lengths.append(answer.len_tokens)
    return {"f1": 100 * sum(scores) / len(scores), "len_tokens": sum(lengths) / len(lengths)}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sets", nargs="+", default=["hotpotqa", "2wikimqa", "musique"])
    parser.add_argument("--methods", nargs="+", default=["standard_cag", "coinrag"])
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--limit", type=int)
    chosen = parser.parse_args()
    backbone = load(chosen.model)
    results = {
        "command": "python benchmarks/encode_after.py " + " ".join(sys.argv[1:]),
        "model": chosen.model,
        "fingerprint": backbone.fingerprint,
        "versions": versions(),
        "rows": [],
    }
    for name in chosen.sets:
        lines = (chosen.data / f"{name}.jsonl").read_text().splitlines()
        rows = [row for row in map(json.loads, lines) if in_dev_half(row)][: chosen.limit]
        for encode_after in ("nothing", "prefix"):
            with tempfile.TemporaryDirectory() as folder:
                source = Path(folder) / "passages.jsonl"
                source.write_text("\n".join(map(json.dumps, rows)))
                options = BuildOptions(model=backbone, encode_after=encode_after)
                index = Index.build(source, Path(folder) / "index", options)
                for method in chosen.methods:
                    started = time.perf_counter()
                    measured = measure(index, rows, method)
                    results["rows"].append(
                        {
                            "set": name,
                            "encode_after": encode_after,
                            "method": method,
                            "questions": len(rows),
                            **measured,
                            "seconds": time.perf_counter() - started,
                        }
                    )
                    print(json.dumps(results["rows"][-1]), flush=True)
                    chosen.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
