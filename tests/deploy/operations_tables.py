"""The tables of docs/server/operations.md, made from the code; run it to bring them up to date."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import typer
from prometheus_client.metrics_core import Metric

from coinkv.cli.main import app
from coinkv.serve.observe.gauges import ServiceState
from coinkv.serve.observe.metrics import Metrics
from coinkv.serve.scheduler.limits import Load
from coinkv.serve.settings import ServeSettings

PAGE = Path(__file__).parents[2] / "docs" / "server" / "operations.md"
_OTHER_NAMES = {"index": "indexes", "no_adapter": "adapter"}
"""Options whose settings are called otherwise."""


def settings_table() -> str:
    """Every field of the settings: option, environment variable, default, meaning."""
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    options: dict[str, list[str]] = {}
    for parameter in commands["serve"].params:
        name = _OTHER_NAMES.get(parameter.name, parameter.name)
        options.setdefault(name, []).append(f"`{max(parameter.opts, key=len)}`")
    rows = [
        (
            ", ".join(options.get(name, ())),
            f"`{ServeSettings.model_config['env_prefix']}{name.upper()}`",
            _default(name, field),
            field.description or "",
        )
        for name, field in ServeSettings.model_fields.items()
    ]
    return _table(("option", "environment variable", "default", "meaning"), rows)


def metrics_table() -> str:
    """Every figure of the server's own: name, type, labels, meaning."""
    metrics = Metrics()
    metrics.registry.register(ServiceState(_any_service()))
    rows = []
    for family in metrics.registry.collect():
        if family.name.startswith("coinkv"):
            suffix = {"counter": "_total", "info": "_info"}.get(family.type, "")
            name = f"`{family.name}{suffix}`"
            labels = ", ".join(f"`{label}`" for label in _labels(metrics, family))
            rows.append((name, family.type, labels, family.documentation))
    return _table(("name", "type", "labels", "meaning"), sorted(rows))


def page_with_tables(text: str) -> str:
    """The page with its tables as the code has them now."""
    for name, table in (("settings", settings_table()), ("metrics", metrics_table())):
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        text = pattern.sub(lambda _, b=begin, t=table, e=end: f"{b}{t}{e}", text)
    return text


def _default(name: str, field: Any) -> str:
    if name == "data_dir":
        return "the user's data folder"
    value = field.get_default(call_default_factory=True)
    if value is None or value in ((), {}):
        return ""
    shown = json.dumps(value) if isinstance(value, bool) else str(value)
    return f"`{shown}`"


def _labels(metrics: Metrics, family: Metric) -> Iterable[str]:
    collector = metrics.registry._names_to_collectors.get(family.name)
    declared = getattr(collector, "_labelnames", None)
    if declared is not None:
        return tuple(declared)
    return sorted({label for sample in family.samples for label in sample.labels})


def _any_service() -> Any:
    tier = {"name": "memory", "blocks": 0, "bytes": 0, "budget_bytes": 0, "hits": 0, "evictions": 0}
    kept = {"tiers": [tier], "misses": 0, "damaged": 0}
    return SimpleNamespace(
        ready=True,
        scheduler=SimpleNamespace(load=lambda: Load(0, 0, 0, 0, 0, 0)),
        models=SimpleNamespace(backbone_name="", store=lambda namespace: kept),
        library=SimpleNamespace(jobs=tuple),
    )


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    def lines() -> Iterator[str]:
        yield f"| {' | '.join(head)} |"
        yield f"|{'---|' * len(head)}"
        for row in rows:
            yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"

    return "".join(f"{line}\n" for line in lines())


if __name__ == "__main__":
    PAGE.write_text(page_with_tables(PAGE.read_text("utf-8")), "utf-8")
