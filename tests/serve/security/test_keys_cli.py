"""`coinkv keys` as typed."""

from __future__ import annotations

import json
import time

import pytest
from typer.testing import CliRunner

from coinkv.cli.keys import app
from coinkv.errors import InputError
from coinkv.serve.security.keys import Keys


@pytest.fixture
def run(tmp_path):
    def ran(*words):
        result = CliRunner().invoke(app, [*words, "--data-dir", str(tmp_path)])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result

    return ran


def test_add_prints_the_key_alone_on_standard_output(run, tmp_path):
    added = run("add", "alice")
    secret = added.stdout.removesuffix("\n")
    key = Keys(tmp_path).find(secret)
    assert key is not None
    assert (key.name, key.namespace, key.expires) == ("alice", "default", None)
    assert "cannot be shown again" in added.stderr


def test_add_takes_namespace_limits_and_an_end(run, tmp_path):
    limits = ("--requests-per-minute", "60", "--tokens-per-minute", "20000")
    added = run("add", "bob", "--namespace", "team", *limits, "--expires", "2999-12-31", "--json")
    facts = json.loads(added.stdout)
    key = Keys(tmp_path).find(facts.pop("key"))
    assert facts == key.to_dict()
    assert "digest" not in facts
    assert (key.namespace, key.requests_per_minute, key.tokens_per_minute) == ("team", 60, 20000)
    assert key.expires == 32503593600


@pytest.mark.parametrize(("text", "seconds"), [("90d", 7_776_000), ("12h", 43_200), ("30m", 1800)])
def test_an_end_may_be_a_time_from_now(run, tmp_path, text, seconds):
    before = int(time.time())
    run("add", "alice", "--expires", text)
    assert before + seconds <= Keys(tmp_path).all()[0].expires <= int(time.time()) + seconds


@pytest.mark.parametrize(
    "text", ["", "soon", "-1d", "90", "1.5d", "9999999d", "2999-13-01", "2001-01-01", "0d"]
)
def test_an_end_that_is_none_is_refused_and_no_key_is_made(run, tmp_path, text):
    with pytest.raises(InputError, match=r"not a time|expired already"):
        run("add", "alice", "--expires", text)
    assert Keys(tmp_path).all() == ()


def test_list_shows_whom_keys_were_made_for_and_none_of_the_keys(run):
    assert run("list").stdout == "no keys\n"
    secret = run("add", "alice", "--expires", "2999-12-31").stdout.strip()
    listed = run("list").stdout
    assert "alice" in listed
    assert "2999-12-31" in listed
    facts = json.loads(run("list", "--json").stdout)
    assert [key["name"] for key in facts["keys"]] == ["alice"]
    assert secret not in listed + json.dumps(facts)


def test_remove_takes_a_key_back(run, tmp_path):
    run("add", "alice")
    run("add", "bob")
    assert run("remove", "alice").stdout == "removed alice\n"
    assert json.loads(run("remove", "bob", "--json").stdout) == {"removed": "bob"}
    assert Keys(tmp_path).all() == ()
    with pytest.raises(InputError, match="no key named 'bob'"):
        run("remove", "bob")


def test_the_servers_data_folder_is_the_default(tmp_path, monkeypatch):
    monkeypatch.setenv("COINKV_SERVE_DATA_DIR", str(tmp_path / "server"))
    result = CliRunner().invoke(app, ["add", "alice"])
    assert result.exit_code == 0
    assert [key.name for key in Keys(tmp_path / "server").all()] == ["alice"]
