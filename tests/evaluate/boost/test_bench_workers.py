"""A system in a process of its own: timed by our clock, checked, and never able to end the run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from stand_in_worker import SLOW_SECONDS

from coinkv.errors import CoinKVError, InputError
from coinkv.evaluate.boost.systems import SYSTEMS, peer_interpreters, systems_named, why_not
from coinkv.evaluate.boost.worker import Worker

PROMPT = "Who counted the sheep? Marta counted 14 sheep on the hill."


@pytest.fixture
def start(conditions, stand_ins):
    """Starts a stand-in of a system; ends all of them after the test."""
    started = []

    def starter(system="full", patience=30.0, interpreter=None, **faults):
        stand_ins.fail(**faults)
        known = SYSTEMS[system]
        command = conditions.command(known, Path(interpreter or stand_ins.python))
        worker = Worker(system, command, conditions.environment(known), patience)
        started.append(worker)
        return worker

    yield starter
    for worker in started:
        worker.close(seconds_to_leave=0)


@pytest.fixture
def tokens(model):
    return model.count_tokens(PROMPT)


def after_two(worker, tokens):
    """A stand-in that crashes, is silent or talks nonsense does so from its third prompt on."""
    for _ in range(2):
        worker.ask(PROMPT, tokens, 8)
    return worker


def test_a_reply_has_what_the_system_told_and_our_times(start, tokens):
    worker = start()
    reply = worker.ask(PROMPT, tokens, 8)
    assert (reply.text, reply.token_ids) == (" The answer is seven", (7, tokens, 1))
    assert reply.reuse == {"exact": 0, "moved": 0, "repaired": 0, "computed": tokens}
    assert 0 < reply.ttft_seconds <= reply.total_seconds
    assert worker.versions == {"stand_in": "1"}
    assert worker.loaded_bytes > 0
    assert 0 < reply.peak_bytes < 10 * worker.loaded_bytes


def test_the_peak_is_that_of_the_worker_and_not_of_whoever_started_it(start, tokens):
    weight = bytearray(os.urandom(1 << 10)) * (1 << 19)  # half a gigabyte that a fork would show
    reply = start().ask(PROMPT, tokens, 8)
    assert reply.peak_bytes < len(weight) // 2


def test_what_a_system_does_before_its_first_token_is_in_our_time(start, tokens):
    assert start(none="slow").ask(PROMPT, tokens, 8).ttft_seconds >= SLOW_SECONDS


def test_replies_are_told_apart_from_prompt_to_prompt(start, tokens):
    worker = start("exact_prefix")
    assert worker.ask(PROMPT, tokens, 8).reuse["exact"] == 0
    assert worker.ask(PROMPT, tokens, 8).reuse["exact"] == tokens - 1


def test_a_crash_is_told_by_the_last_line_on_standard_error(start, tokens):
    worker = after_two(start(none="crash"), tokens)
    with pytest.raises(CoinKVError, match="its process ended: RuntimeError: the roof fell in"):
        worker.ask(PROMPT, tokens, 8)


def test_a_system_that_cannot_be_loaded_says_why(start):
    with pytest.raises(CoinKVError, match="No module named 'kvboost'"):
        start("kvboost", cacheblend="no module")


@pytest.mark.parametrize(
    ("fault", "match"),
    [
        ("nonsense", "answered nonsense: Loading weights"),
        ("wrong sum", "answered nonsense"),
        ("miscount", "saw .* tokens in a prompt of"),
    ],
)
def test_what_cannot_be_right_is_not_measured(start, tokens, fault, match):
    worker = start(none=fault)
    if fault == "nonsense":
        after_two(worker, tokens)
    with pytest.raises(CoinKVError, match=match):
        worker.ask(PROMPT, tokens, 8)


def test_a_system_that_says_nothing_any_more_is_given_up(start, tokens):
    worker = after_two(start(none="silent"), tokens)
    worker._patience = 0.3
    with pytest.raises(CoinKVError, match="was silent for 0 s"):
        worker.ask(PROMPT, tokens, 8)


def test_closing_ends_the_process(start, tokens):
    worker = start()
    worker.ask(PROMPT, tokens, 8)
    worker.close()
    with pytest.raises(ProcessLookupError):
        os.kill(worker._process.pid, 0)
    assert worker._process.returncode == 0  # it left by itself


def test_a_worker_that_is_busy_is_ended_at_once(start):
    worker = start()
    worker._send(b'{"prompt": "x", "max_new_tokens": 1}\n' * 10)
    worker.close(seconds_to_leave=0)
    assert worker._process.returncode is not None


def test_an_interpreter_that_is_none_cannot_be_started(start, tmp_path):
    (tmp_path / "python").write_text("not a program")
    with pytest.raises(CoinKVError, match="cannot be started"):
        start(interpreter=tmp_path / "python")
    with pytest.raises(CoinKVError, match="it said nothing"):
        start(interpreter="/bin/true")


def test_an_environment_gets_our_threads_and_a_peer_none_of_our_packages(conditions, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    ours, peer = (conditions.environment(SYSTEMS[name]) for name in ("full", "vllm"))
    assert ours["OMP_NUM_THREADS"] == peer["OMP_NUM_THREADS"] == "1"
    assert ours["PYTHONPATH"] == "/somewhere"
    assert "PYTHONPATH" not in peer
    assert peer["HF_HUB_OFFLINE"] == "1"  # the model is a folder


def test_settings_tell_systems_apart_and_name_no_place(conditions, model):
    settings = [conditions.settings(system) for system in SYSTEMS.values()]
    assert all(settings.count(each) == 1 for each in settings)
    assert all(model.source not in str(each) for each in settings)
    assert "chunk_tokens" not in conditions.settings(SYSTEMS["coinkv_auto"])  # its own default


def test_peers_are_named_with_an_interpreter_and_skipped_where_there_is_none(tmp_path):
    assert peer_interpreters(["vllm=/x/python"]) == {"vllm": Path("/x/python")}
    for wrong in ("vllm", "vllm=", "magic=/x/python"):
        with pytest.raises(InputError, match="NAME=PYTHON"):
            peer_interpreters([wrong])
    with pytest.raises(InputError, match="twice"):
        peer_interpreters(["vllm=/x", "vllm=/y"])
    assert why_not(SYSTEMS["full"], {}) is None
    assert "give --peer vllm=PYTHON" in why_not(SYSTEMS["vllm"], {})
    gone = {"kvboost": tmp_path / "python"}
    assert "no interpreter at" in why_not(SYSTEMS["kvboost_selective"], gone)


def test_systems_are_named_once_each_and_known():
    assert [s.name for s in systems_named(["full", "vllm", "full"])] == ["full", "vllm"]
    with pytest.raises(InputError, match="there is no system 'magic'"):
        systems_named(["full", "magic"])
    with pytest.raises(InputError, match="no system is named"):
        systems_named([])
