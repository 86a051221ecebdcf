"""How much a scheduler takes on, and how much it has to do."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """How much a scheduler takes on.

    Attributes:
        slots: requests computed at a time.
        prefills: of these, prompts computed at a time.
        queue: requests that may wait.
        live_tokens: no further request begins while the running ones hold so many tokens of KV.
    """

    slots: int = 16
    prefills: int = 4
    queue: int = 128
    live_tokens: int = 65_536

    @property
    def slots_of_one(self) -> int:
        """Slots that a client may take where others ask, too: one of them finds a slot at once."""
        return max(1, self.slots - 1)

    @property
    def queue_of_one(self) -> int:
        """Requests of one client that may wait."""
        return max(min(1, self.queue), self.queue * 3 // 4)


@dataclass(frozen=True)
class Load:
    """What a scheduler has to do.

    Attributes:
        queued: requests that wait.
        waiting_clients: clients that have some waiting.
        prefilling: prompts and errands that are being computed.
        decoding: requests whose answers are being decoded.
        live_tokens: tokens of KV that the running requests hold.
        slots: requests that may run.
    """

    queued: int
    waiting_clients: int
    prefilling: int
    decoding: int
    live_tokens: int
    slots: int

    @property
    def busy(self) -> bool:
        """Something is being computed or waits for it."""
        return bool(self.queued or self.prefilling or self.decoding)
