"""The OpenAPI document keeps its word: schemathesis finds no 500 and no reply that it forbids."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hostile_server import attacked

from coinkv.serve.security.keys import Keys

RUN = "from schemathesis.cli import schemathesis; schemathesis()"
CONFIG = """
warnings = false
suppress-health-check = ["all"]
request-timeout = 60.0
seed = 5

[headers]
Authorization = "Bearer {key}"

[generation]
database = "none"

[dictionaries]
models = {{ values = ["tiny-chat", "coinrag/index", "all-minilm-l6-v2"] }}
indexes = {{ values = ["index", "fuzzed"] }}
documents = {{ values = ["bridge.txt", "fuzzed"] }}

[parameters]
"body.model" = {{ dictionary = "models" }}
"path.name" = {{ dictionary = "indexes", probability = 0.8 }}
"path.key" = {{ dictionary = "documents", probability = 0.8 }}
"path.model_id" = {{ dictionary = "models", probability = 0.8 }}

[checks]
# a name that fits its pattern is not yet one of an index, a document or a job
positive_data_acceptance.enabled = false

[checks.negative_data_rejection]
expected-statuses = [400, 401, 403, 404, 405, 408, 413, 414, 415, 421, 429, 431, 503, 504]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server with API keys: without one, everything of the API is refused."""
    folder = tmp_path_factory.mktemp("fuzzed")
    with attacked(folder, max_body_bytes=2_000_000, max_upload_bytes=2_000_000) as server:
        yield server


def require_no_findings(server, folder, *options, seconds):
    """Have schemathesis send what the server's document permits, and what it does not."""
    _, key = Keys(server.service.settings.data_dir).add(folder.name)
    config = folder / "schemathesis.toml"
    config.write_text(CONFIG.format(key=key), encoding="utf-8")
    command = [sys.executable, "-c", RUN, "--config-file", str(config), "--no-color", "run"]
    ran = subprocess.run(
        [*command, f"{server.url}/openapi.json", "--continue-on-failure", *options],
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
        cwd=folder,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "No issues found" in ran.stdout


def test_schemathesis_finds_nothing(server, tmp_path):
    require_no_findings(server, tmp_path, "--max-examples", "8", seconds=300)


@pytest.mark.slow
def test_schemathesis_finds_nothing_in_a_long_run(server, tmp_path):
    require_no_findings(server, tmp_path, "--max-examples", "300", seconds=7200)
