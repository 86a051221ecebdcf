"""Made-up texts with questions on each, in memory and as a file."""

from __future__ import annotations

import json

from coinkv.evaluate.dataset import EvalRow, EvalSet, Passage


def made_set(texts=4, questions=3):
    rows = [
        EvalRow(
            f"t{text}#{number}",
            f"What is number {number} of {text}?",
            ("seven", f"n{number}"),
            (Passage(f"t{text}", f"Text {text} speaks of sheep. " + "It rains. " * (text + 1)),),
        )
        for text in range(texts)
        for number in range(questions)
    ]
    return EvalSet("made", tuple(rows))


def write_set(path, eval_set):
    lines = [
        json.dumps(
            {
                "id": row.id,
                "question": row.question,
                "answers": list(row.answers),
                "passages": [{"title": p.title, "text": p.text} for p in row.passages],
            }
        )
        for row in eval_set.rows
    ]
    path.write_text("".join(line + "\n" for line in lines))
    return path
