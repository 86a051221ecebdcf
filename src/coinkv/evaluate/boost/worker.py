"""A system in a process of its own, seen from outside: started, asked, timed, closed."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import IO, Any, cast

from coinkv.errors import CoinKVError

_SECONDS_TO_LEAVE = 5.0
_REUSE = ("exact", "moved", "repaired", "computed")


@dataclass(frozen=True)
class Reply:
    """What came of one prompt.

    Attributes:
        ttft_seconds: from sending the prompt to the news that the first token exists.
        total_seconds: from sending it to the system being idle again.
        text: the answer.
        token_ids: its tokens, perhaps with the one that ended it.
        reuse: where the prompt's KV came from: exact, moved, repaired and computed tokens.
        peak_bytes: most resident bytes of the process so far.
        repair: the strategy that was used, None where the system does not tell.
        stages_ms: of its own clock, None where it does not tell.
    """

    ttft_seconds: float
    total_seconds: float
    text: str
    token_ids: tuple[int, ...]
    reuse: Mapping[str, int]
    peak_bytes: int
    repair: str | None
    stages_ms: Mapping[str, float] | None


class Worker:
    """A system that is loaded, warmed up and idle.

    Args:
        name: of the system, for messages.
        command: what starts it.
        environment: all its environment variables.
        patience_seconds: how long it may be silent.

    Attributes:
        loaded_bytes: resident bytes before the first prompt.
        versions: of what it is made of, as it tells them.

    Raises:
        CoinKVError: it cannot be started, ended, was silent for too long or said something else.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        patience_seconds: float,
    ) -> None:
        self.name = name
        self._patience = patience_seconds
        self._buffer = b""
        self._errors = TemporaryFile()  # noqa: SIM115 - open as long as the process runs
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=dict(environment),
                start_new_session=True,  # Ctrl-C is for us; its children end with it
            )
        except OSError as error:
            self._errors.close()
            raise CoinKVError(f"cannot be started ({error.strerror})", where=name) from error
        self._input = cast("IO[bytes]", self._process.stdin)
        self._output = cast("IO[bytes]", self._process.stdout)
        try:
            ready = self._message("ready")
            if not isinstance(ready, dict) or not isinstance(ready.get("loaded_bytes"), int):
                raise self._nonsense({"ready": ready})
        except BaseException:
            self.close(seconds_to_leave=0)
            raise
        self.loaded_bytes: int = ready["loaded_bytes"]
        self.versions: Mapping[str, str] = ready.get("versions") or {}

    def ask(self, prompt: str, prompt_tokens: int, max_new_tokens: int) -> Reply:
        """Have a prompt answered.

        Args:
            prompt: as plain text.
            prompt_tokens: how many tokens the system must see in it.
            max_new_tokens: most tokens of the answer.

        Raises:
            CoinKVError: it ended, was silent for too long, said something else or saw another
                prompt.
        """
        request = json.dumps({"prompt": prompt, "max_new_tokens": max_new_tokens}).encode() + b"\n"
        started = time.perf_counter()
        self._send(request)
        self._message("first")
        ttft_seconds = time.perf_counter() - started
        facts = self._message("done")
        total_seconds = time.perf_counter() - started
        if not _is_whole(facts):
            raise self._nonsense({"done": facts})
        if facts["prompt_tokens"] != prompt_tokens:
            raise CoinKVError(
                f"saw {facts['prompt_tokens']} tokens in a prompt of {prompt_tokens}",
                where=self.name,
            )
        return Reply(
            ttft_seconds,
            total_seconds,
            facts["text"],
            tuple(facts["token_ids"]),
            {kind: facts["reuse"][kind] for kind in _REUSE},
            facts["peak_bytes"],
            facts.get("repair"),
            facts.get("stages_ms"),
        )

    def close(self, seconds_to_leave: float = _SECONDS_TO_LEAVE) -> None:
        """End the process and what it started, by force if it does not leave by itself."""
        with suppress(OSError):
            self._input.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds_to_leave)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._output.close()
        self._errors.close()

    def _send(self, request: bytes) -> None:
        try:
            self._input.write(request)
            self._input.flush()
        except OSError as error:
            raise self._ended() from error

    def _message(self, kind: str) -> Any:
        """The value of the next message, which must be of this kind."""
        line = self._line()
        try:
            message = json.loads(line)
            return message[kind]
        except (ValueError, LookupError, TypeError) as error:
            raise self._nonsense(line.decode(errors="replace")) from error

    def _line(self) -> bytes:
        deadline = time.monotonic() + self._patience
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._output], [], [], left)[0]:
                raise CoinKVError(f"was silent for {self._patience:.0f} s", where=self.name)
            read = os.read(self._output.fileno(), 1 << 16)
            if not read:
                raise self._ended()
            self._buffer += read
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _ended(self) -> CoinKVError:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_SECONDS_TO_LEAVE)
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(said) if line.strip()), "it said nothing")
        return CoinKVError(f"its process ended: {last[:300]}", where=self.name)

    def _nonsense(self, said: Any) -> CoinKVError:
        return CoinKVError(f"answered nonsense: {str(said)[:100]}", where=self.name)


def _is_whole(facts: Any) -> bool:
    """Whether an answer has all it must have, and its reuse adds up to the prompt."""
    if not isinstance(facts, dict) or not isinstance(facts.get("text"), str):
        return False
    tokens, reuse = facts.get("token_ids"), facts.get("reuse")
    if not isinstance(tokens, list) or not all(isinstance(t, int) for t in tokens):
        return False
    if not isinstance(reuse, dict) or not isinstance(facts.get("peak_bytes"), int):
        return False
    counts = [reuse.get(kind) for kind in _REUSE]
    whole = [count for count in counts if isinstance(count, int) and count >= 0]
    return len(whole) == len(_REUSE) and sum(whole) == facts.get("prompt_tokens")
