"""The dashboard asks for figures and labels that the server really has, and for all that matter."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families as parsed
from test_served_figures import ask

DASHBOARD = Path(__file__).parents[3] / "deploy" / "grafana" / "dashboards" / "coinkv.json"
OF_PROMETHEUS = {"instance", "job", "le"}
"""Labels that scraping adds, and that of a histogram's bounds."""


def queries() -> Iterator[tuple[str, str]]:
    for panel in json.loads(DASHBOARD.read_text("utf-8"))["panels"]:
        for target in panel.get("targets", ()):
            yield f"{panel['title']} {target['refId']}", target["expr"]


QUERIES = dict(queries())
METRIC = re.compile(r"\b((?:coinkv|process|python)_\w+)(?:\{([^}]*)\})?")


@pytest.fixture(scope="module")
def exported(running_server: Any) -> dict[str, set[str]]:
    """Names of the samples of a server that has answered, and the labels of each."""
    url = running_server.url
    ask(url, "question")
    ask(url, "boost")
    httpx.get(f"{url}/nowhere")
    found: dict[str, set[str]] = {}
    for family in parsed(httpx.get(f"{url}/metrics").text):
        for suffix in {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}.get(
            family.type, [""]
        ):
            found[family.name + suffix] = set()
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


@pytest.mark.parametrize("where", QUERIES)
def test_a_panel_asks_for_what_is_exported(where: str, exported: dict[str, set[str]]) -> None:
    query = QUERIES[where]
    names = [name for name, _ in METRIC.findall(query)]
    assert names
    assert [name for name in names if name not in exported] == []
    labels = {label for name in names for label in exported[name]} | OF_PROMETHEUS
    grouped = {each for by in re.findall(r"by \(([^)]*)\)", query) for each in by.split(", ")}
    selected = set(re.findall(r"(\w+)(?:=~|!~|!=|=)\"", query))
    assert grouped | selected <= labels


def test_a_panels_legend_names_labels_of_its_query() -> None:
    for panel in json.loads(DASHBOARD.read_text("utf-8"))["panels"]:
        for target in panel.get("targets", ()):
            named = set(re.findall(r"{{(\w+)}}", target["legendFormat"])) - OF_PROMETHEUS
            assert all(label in target["expr"] for label in named), panel["title"]


def test_every_figure_of_the_server_but_its_name_stands_in_some_panel(
    exported: dict[str, set[str]],
) -> None:
    shown = {name for query in QUERIES.values() for name, _ in METRIC.findall(query)}
    families = {re.sub(r"_(total|bucket|sum|count)$", "", name) for name in shown}
    ours = {
        re.sub(r"_(total|bucket|sum|count)$", "", name)
        for name in exported
        if name.startswith("coinkv_") and not name.endswith("_created")
    }
    left_out = {
        "coinkv_info",
        "coinkv_scheduler_live_tokens",
        "coinkv_store_blocks",
        "coinkv_scheduler_waiting_clients",
        "coinkv_task_seconds",
    }
    assert ours - families - left_out == set()


def test_brackets_of_every_query_match() -> None:
    for where, query in QUERIES.items():
        for opening, closing in ("()", "[]", "{}"):
            assert query.count(opening) == query.count(closing), where


def test_panels_have_a_place_of_their_own_and_the_dashboards_data_source() -> None:
    panels = json.loads(DASHBOARD.read_text("utf-8"))["panels"]
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
        for target in panel.get("targets", ()):
            assert target["datasource"] == {"type": "prometheus", "uid": "${source}"}
    assert len({panel["id"] for panel in panels}) == len(panels)
