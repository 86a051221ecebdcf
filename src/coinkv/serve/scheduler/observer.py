"""What the scheduler tells of its work to whoever counts, measures and traces it."""

from __future__ import annotations

from typing import Literal

from coinkv.serve.scheduler.events import Event
from coinkv.serve.scheduler.task import Begun

Outcome = Literal["done", "cancelled", "deadline", "error", "shutdown"]
StepKind = Literal["decode", "prefill"]


class Observer:
    """Listens to a scheduler; does nothing by itself. Every method returns at once, never raises.

    The scheduler calls them from its own threads, several at a time; `queued` and `heard` run in
    the context of the request that submitted.
    """

    def queued(self, kind: str) -> None:
        """A request of this kind (`boost` or `question`) was taken on and waits for a slot."""

    def began(self, kind: str, begun: Begun, queue_seconds: float) -> None:
        """A prompt's KV is complete.

        Args:
            kind: of the task.
            begun: the prompt; its stages, tokens and facts, not its cache, are of interest.
            queue_seconds: from submission to a free slot.
        """

    def token(self, kind: str, n: int) -> None:
        """So many tokens of answers were chosen."""

    def heard(self, event: Event) -> None:
        """The request that submitted has taken an event from its ticket."""

    def ended(self, kind: str, outcome: Outcome, seconds: float) -> None:
        """A request has left the scheduler, so many seconds after it was submitted."""

    def step(self, kind: StepKind, tokens: int, seconds: float) -> None:
        """One pass of the model.

        Args:
            kind: `prefill` of one prompt's chunk, or one token of every stream (`decode`).
            tokens: computed in it; of a decoding step, the streams that it advanced.
            seconds: it took.
        """
