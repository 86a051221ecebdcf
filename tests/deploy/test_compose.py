"""The compose file and what it mounts belong together, and open no port to other machines."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import pytest
import yaml
from deploying import DEPLOY, settings_from

FILE = DEPLOY / "compose.yaml"


def loaded(path: str) -> Any:
    return yaml.safe_load((DEPLOY / path).read_text("utf-8"))


SERVICES: dict[str, Any] = loaded("compose.yaml")["services"]


def test_it_fits_the_compose_specification() -> None:
    if find_spec("check_jsonschema") is None:
        pytest.skip("check-jsonschema is not installed")
    command = [sys.executable, "-m", "check_jsonschema"]
    command += ["--builtin-schema", "vendor.compose-spec", str(FILE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", SERVICES)
def test_ports_are_this_machines_only_and_images_have_versions(name: str) -> None:
    service = SERVICES[name]
    assert service["ports"]
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    assert "build" in service or ":" in service["image"]
    assert not service["image"].endswith(":latest")


def test_volumes_are_declared_or_lie_beside_the_file() -> None:
    declared = set(loaded("compose.yaml")["volumes"])
    for service in SERVICES.values():
        for mount in service["volumes"]:
            source = mount.split(":")[0]
            assert source in declared or (DEPLOY / source).exists(), mount
    assert (DEPLOY / SERVICES["server"]["build"]["context"] / "pyproject.toml").exists()


def test_the_servers_environment_is_made_of_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_from(SERVICES["server"]["environment"], monkeypatch)
    assert settings.open_access
    seconds = int(SERVICES["server"]["stop_grace_period"].removesuffix("s"))
    assert seconds > settings.shutdown_seconds


def test_prometheus_scrapes_the_server_under_a_name_it_answers_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (job,) = loaded("prometheus.yml")["scrape_configs"]
    ((target,),) = [each["targets"] for each in job["static_configs"]]
    host, port = target.split(":")
    assert host in SERVICES
    assert SERVICES["server"]["ports"][0].endswith(f":{port}")
    assert host in settings_from(SERVICES["server"]["environment"], monkeypatch).allowed_hosts
    assert job["job_name"] == "coinkv"  # the dashboard selects by it
    assert job.get("metrics_path", "/metrics") == "/metrics"


def test_grafana_finds_prometheus_and_the_dashboard() -> None:
    (source,) = loaded("grafana/provisioning/datasources/prometheus.yaml")["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert source["isDefault"] is True
    interval = loaded("prometheus.yml")["global"]["scrape_interval"]
    assert source["jsonData"]["timeInterval"] == interval
    (provider,) = loaded("grafana/provisioning/dashboards/coinkv.yaml")["providers"]
    mounts = dict(mount.split(":")[:2] for mount in SERVICES["grafana"]["volumes"])
    assert provider["options"]["path"] == mounts["./grafana/dashboards"]
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == f"{provider['options']['path']}/coinkv.json"
    assert (DEPLOY / "grafana" / "dashboards" / "coinkv.json").exists()
