"""Any prompt, answered by KVBoost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict

from coinkv.boost.engine import KVBoost
from coinkv.boost.plan import Reuse
from coinkv.boost.prefill import FirstToken
from coinkv.boost.result import BoostResult
from coinkv.model.backbone import Backbone
from coinkv.model.chat import AnyPrompt
from coinkv.model.decode_batch import Decoded
from coinkv.serve.scheduler.task import Begun, Task


class PromptTask(Task):
    """A text, token ids or a chat, of which everything that is kept is reused.

    `Done.result` is a `BoostResult`; `Begun.facts` has `reuse` (tokens `exact`, `moved`, `repaired`
    and `computed`) and `repair`.

    Args:
        boost: gives the engine of the client's namespace; a new one takes a moment to make.
        backbone: the engine's model.
        prompt: what to continue or to answer.
        answer_tokens: room for the answer.
        reuse: `all`, `exact` or `none`.
        repair: name of a repair strategy; None: the engine's.
    """

    kind = "boost"

    def __init__(
        self,
        boost: Callable[[], KVBoost],
        backbone: Backbone,
        prompt: AnyPrompt,
        *,
        answer_tokens: int,
        reuse: Reuse = "all",
        repair: str | None = None,
    ) -> None:
        self.backbone = backbone
        self._boost, self._prompt, self._answer_tokens = boost, prompt, answer_tokens
        self._reuse, self._repair = reuse, repair

    def begin(self) -> Begun:
        """Compute what was never computed of the prompt.

        Raises:
            InputError: it is empty, or does not fit into the context window.
        """
        first = self._boost().first_token(
            self._prompt,
            answer_tokens=self._answer_tokens,
            reuse=self._reuse,
            repair=self._repair,
        )
        split = first.placed.split
        return Begun(
            cache=first.placed.live,
            logits=first.placed.logits,
            prompt_tokens=split.total,
            cached_tokens=split.exact + split.moved,
            ttft_seconds=first.clock.total_seconds,
            stages_seconds=dict(first.clock.stages_seconds),
            facts={"reuse": asdict(split), "repair": first.intent.strategy},
            carried=first,
        )

    def end(self, begun: Begun, answers: Sequence[Decoded], decode_seconds: float) -> BoostResult:
        """Keep the KV of the prompt and of the first answer."""
        first: FirstToken = begun.carried
        answer = answers[0] if answers else Decoded("", (), "length")
        return self._boost().complete(first, answer, decode_seconds)
