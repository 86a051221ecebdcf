"""The rows of a set's first questions, with their passages.

    python benchmarks/first_questions.py hotpotqa.jsonl --half dev --limit 30 --to FILE

An index of FILE is built in minutes.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from coinkv.evaluate.dataset import half, read_set


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", type=Path)
    parser.add_argument("--half", default="dev")
    parser.add_argument("--limit", type=int, required=True)
    parser.add_argument("--to", type=Path, required=True)
    asked = parser.parse_args()
    first = {row.id for row in half(read_set(asked.rows), asked.half).rows[: asked.limit]}
    lines = asked.rows.read_text(encoding="utf-8").splitlines()
    asked.to.parent.mkdir(parents=True, exist_ok=True)
    kept = [line for line in lines if json.loads(line)["id"] in first]
    asked.to.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")


if __name__ == "__main__":
    main()
