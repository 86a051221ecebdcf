"""The systemd unit: understood by systemd, hardened, and in step with the server's settings."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import typer
from deploying import DEPLOY, settings_from

from coinkv.cli.main import app

FILE = DEPLOY / "coinkv.service"
TEXT = FILE.read_text("utf-8")
ANALYZE = shutil.which("systemd-analyze")


def values(key: str) -> list[str]:
    return re.findall(rf"^{key}=(.*)$", TEXT, re.MULTILINE)


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The unit with a program that exists here."""
    unit = tmp_path / "coinkv.service"
    unit.write_text(re.sub(r"(?m)^ExecStart=\S+", "ExecStart=/bin/true", TEXT), "utf-8")
    return unit


@pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not here")
def test_systemd_understands_every_line(installed: Path) -> None:
    done = subprocess.run(
        [str(ANALYZE), "verify", str(installed)], capture_output=True, text=True, check=False
    )
    about_it = [line for line in done.stderr.splitlines() if "coinkv.service" in line]
    assert (done.returncode, about_it) == (0, [])


@pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not here")
def test_systemd_rates_its_exposure_as_low(installed: Path) -> None:
    command = [str(ANALYZE), "security", "--offline=yes", "--threshold=25", str(installed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd cannot rate a file")
    assert done.returncode == 0, done.stdout[-200:]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("DynamicUser", "yes"),
        ("NoNewPrivileges", "yes"),
        ("ProtectSystem", "strict"),
        ("ProtectHome", "yes"),
        ("StateDirectory", "coinkv"),
        ("CapabilityBoundingSet", ""),
        ("UMask", "0077"),
    ],
)
def test_it_is_hardened(key: str, value: str) -> None:
    assert values(key) == [value]


def test_it_starts_a_command_that_there_is() -> None:
    (start,) = values("ExecStart")
    assert start.split()[0].endswith("/bin/coinkv")
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert start.split()[1] in commands


def test_its_variables_are_settings_and_its_folders_the_units_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    variables = dict(pair.split("=") for line in values("Environment") for pair in line.split())
    settings = settings_from(variables, monkeypatch)
    assert str(settings.data_dir) == f"%S/{values('StateDirectory')[0]}"
    assert variables["COINKV_HOME"] == f"%C/{values('CacheDirectory')[0]}"


def test_streams_have_the_time_to_end_that_the_server_gives_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert int(values("TimeoutStopSec")[0]) > settings_from({}, monkeypatch).shutdown_seconds


def test_the_environment_file_is_read_after_the_units_own_variables() -> None:
    assert values("EnvironmentFile") == ["-/etc/coinkv/coinkv.env"]
    assert TEXT.index("\nEnvironment=") < TEXT.index("\nEnvironmentFile=")
