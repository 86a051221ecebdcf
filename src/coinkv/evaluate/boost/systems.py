"""Systems that are measured: what each is made of, and how its process is started."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

from coinkv.boost.chunks import LARGEST_TARGET, SMALLEST_TARGET, Boundaries
from coinkv.errors import InputError
from coinkv.evaluate.boost.prompts import PromptModel
from coinkv.kv.codec import codec_named
from coinkv.model.allocator import FREED_MEMORY_IS_KEPT

_WORKERS = Path(__file__).parent / "workers"
_WARM_UP_TOKENS = 400


@dataclass(frozen=True, eq=False)
class System:
    """One way to answer prompts one after another.

    Attributes:
        name: as results name it.
        options: what sets it apart from others of its worker.
        peer: name of the environment it needs, None for coinkv's own.
    """

    name: str
    options: Mapping[str, Any]
    peer: str | None = None


def _ours(name: str, reuse: str, repair: str) -> System:
    return System(name, MappingProxyType({"reuse": reuse, "repair": repair}))


def _kvboost(name: str, strategy: str) -> System:
    return System(name, MappingProxyType({"strategy": strategy}), "kvboost")


SYSTEMS = {
    system.name: system
    for system in (
        _ours("full", "none", "none"),
        _ours("exact_prefix", "exact", "none"),
        _ours("coinkv_selective", "all", "selective"),
        _ours("coinkv_cacheblend", "all", "cacheblend"),
        _ours("coinkv_epic", "all", "epic"),
        _ours("coinkv_auto", "all", "auto"),
        _kvboost("kvboost", "cacheblend"),
        _kvboost("kvboost_selective", "selective"),
        System("vllm", MappingProxyType({}), "vllm"),
    )
}
"""`kvboost` has the settings its authors recommend, `kvboost_selective` its default repair."""
PEERS = tuple(dict.fromkeys(system.peer for system in SYSTEMS.values() if system.peer))


@dataclass(frozen=True)
class Conditions:
    """What is the same for all systems of a run, or for coinkv's own.

    Attributes:
        model: the model.
        threads: CPU threads of every worker.
        budget_bytes: of every cache.
        chunk_tokens: of coinkv's chunks, None for its default. Peers have their own.
        codec: of coinkv's store.
        boundaries: of coinkv's chunks.

    Raises:
        InputError: no such codec or boundaries, or a number that is out of range.
    """

    model: PromptModel
    threads: int
    budget_bytes: int
    chunk_tokens: int | None
    codec: str
    boundaries: str

    def __post_init__(self) -> None:
        codec_named(self.codec)
        if self.boundaries not in get_args(Boundaries):
            raise InputError(
                f"boundaries is {self.boundaries!r}",
                hint=f"use one of {', '.join(get_args(Boundaries))}",
            )
        least, most = SMALLEST_TARGET, LARGEST_TARGET
        if self.chunk_tokens is not None and not least <= self.chunk_tokens <= most:
            raise InputError(f"chunk_tokens is {self.chunk_tokens}", hint=f"use {least} to {most}")

    def settings(self, system: System) -> dict[str, Any]:
        """All that a system's answers and times depend on besides prompts and machine."""
        shared = {
            "fingerprint": self.model.fingerprint,
            "device": self.model.device,
            "dtype": self.model.dtype,
            "threads": self.threads,
            "budget_bytes": self.budget_bytes,
            "context_tokens": self.model.context_length,
            **system.options,
        }
        if system.peer is not None or system.options["reuse"] == "none":
            return shared  # what is never kept depends on no chunks
        chunk = {} if self.chunk_tokens is None else {"chunk_tokens": self.chunk_tokens}
        return {**shared, **chunk, "codec": self.codec, "boundaries": self.boundaries}

    def command(self, system: System, interpreter: Path | None) -> list[str]:
        """What starts a system's worker: interpreter, script, settings as JSON."""
        once = max(1, self.model.count_tokens("warm up " * 100) // 100)
        times = min(_WARM_UP_TOKENS, self.model.context_length // 2) // once
        settings = {
            **self.settings(system),
            "model": self.model.source if system.peer else self.model.name,
            "warm_up": "warm up " * times,
        }
        script = _WORKERS / f"{system.peer or 'coinkv'}_worker.py"
        return [str(interpreter or sys.executable), str(script), json.dumps(settings)]

    def environment(self, system: System) -> dict[str, str]:
        """Environment variables of a worker: threads, no look at the hub for what is a folder."""
        kept = {k: v for k, v in os.environ.items() if k != "PYTHONPATH" or system.peer is None}
        kept.setdefault("GOMP_SPINCOUNT", "1000")  # idle workers must not keep a core busy
        for name, size in FREED_MEMORY_IS_KEPT.items():  # for peers, too: it saves them as much
            kept.setdefault(name, size)
        if Path(self.model.source).is_dir():
            kept["HF_HUB_OFFLINE"] = "1"
        return {**kept, "OMP_NUM_THREADS": str(self.threads)}


def systems_named(names: Sequence[str]) -> tuple[System, ...]:
    """Systems by name, each once.

    Raises:
        InputError: there is none of a name, or no name at all.
    """
    unknown = [name for name in names if name not in SYSTEMS]
    if unknown or not names:
        raise InputError(
            f"there is no system {unknown[0]!r}" if unknown else "no system is named",
            hint=f"use some of {', '.join(SYSTEMS)}",
        )
    return tuple(SYSTEMS[name] for name in dict.fromkeys(names))


def peer_interpreters(given: Sequence[str]) -> dict[str, Path]:
    """Interpreters of the peers' environments from `NAME=PYTHON`.

    Raises:
        InputError: a text of another form, an unknown peer, or one that is given twice.
    """
    found: dict[str, Path] = {}
    for text in given:
        name, equals, python = text.partition("=")
        if not equals or not python.strip() or name not in PEERS:
            raise InputError(
                f"--peer {text!r} is not NAME=PYTHON", hint=f"NAME is one of {', '.join(PEERS)}"
            )
        if name in found:
            raise InputError(f"--peer {name} is given twice", hint="give it once")
        found[name] = Path(python.strip()).expanduser()
    return found


def why_not(system: System, interpreters: Mapping[str, Path]) -> str | None:
    """Why a system cannot be started here, None if it can be tried."""
    if system.peer is None:
        return None
    if system.peer not in interpreters:
        return f"no environment: give --peer {system.peer}=PYTHON (benchmarks/peers/install.sh)"
    python = interpreters[system.peer]
    return None if shutil.which(python) else f"no interpreter at {python}"
