"""`coinkv report` makes a report of the very file that `coinkv sweep` wrote."""

from __future__ import annotations

import json

from fixtures.village_questions import write_rows


def test_a_sweep_of_both_halves_becomes_a_report(coinkv, model_folder, tmp_path):
    results, out = tmp_path / "results.jsonl", tmp_path / "report"
    sets = [write_rows(tmp_path / f"{name}.jsonl") for name in ("village", "hamlet")]
    places = ("--folder", tmp_path / "indexes", "--to", results, "--model", model_folder)
    sweep = ("sweep", *sets, *places, "--answer-tokens", 3, "--timed-queries", 3, "--json")
    grid = tmp_path / "grid.json"
    grid.write_text(
        json.dumps(
            [
                {"method": "standard_rag", "k_chunks": [1, 2]},
                {"method": "coinrag", "k_chunks": 2, "k_nuggets": [1, 3]},
                {"method": "coinrag", "k_chunks": 2, "k_nuggets": 3, "options": {"align": False}},
                {"method": "coinrag_kvlink", "k_chunks": 2, "k_nuggets": 3},
            ]
        )
    )
    for more in (("--grid", grid), ("--half", "test", "--chosen-from", results)):
        ran = coinkv(*sweep, *more)
        assert ran.code == 0, ran
    ran = coinkv("report", results, "--out", out, "--json")
    assert ran.code == 0, ran
    facts = json.loads(ran.out)
    page = (out / "report.html").read_text(encoding="utf-8")
    for name in ("standard_rag", "coinrag", "coinrag_kvlink", "village", "hamlet", "align=False"):
        assert name in page, name
    assert list(out.rglob("*.svg"))
    assert list(out.rglob("*.png"))
    said = json.dumps(facts)
    assert "was not run on the test half" not in said + page
    assert "cut off" not in said
