"""What KVBoost answers with: the text, where its prompt's KV came from, and where the time went."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from coinkv.model.decode import FinishReason


@dataclass(frozen=True)
class ReuseSplit:
    """Where the KV of a prompt's tokens came from. The four add up to the prompt.

    Exact and moved are never one figure: the first is what computing would have given, the second
    an approximation.

    Attributes:
        exact: tokens used as they were computed, bit for bit, behind the very same tokens.
        moved: tokens used that were computed behind other tokens, moved to their place.
        repaired: tokens that were moved and then computed again in all layers.
        computed: tokens of which nothing was kept.
    """

    exact: int = 0
    moved: int = 0
    repaired: int = 0
    computed: int = 0

    def __add__(self, other: ReuseSplit) -> ReuseSplit:
        return ReuseSplit(
            self.exact + other.exact,
            self.moved + other.moved,
            self.repaired + other.repaired,
            self.computed + other.computed,
        )

    @property
    def total(self) -> int:
        """Tokens of the prompt."""
        return self.exact + self.moved + self.repaired + self.computed


@dataclass(frozen=True)
class BoostResult:
    """What `KVBoost.generate` returns.

    Attributes:
        text: the continuation.
        token_ids: its tokens.
        finish_reason: `stop`, or `length` when a limit ended it.
        prompt_tokens: tokens of the prompt.
        reuse: where their KV came from.
        repair: the strategy that was used on moved tokens; `none` where there were none,
            `everything` where they were few enough to compute them instead.
        ttft_seconds: from the prompt's arrival to the first token's logits, everything included.
        stages_seconds: the same by stage (tokenize, plan, read, compose, prefill); they add up.
        decode_seconds: from the first token's logits to the end of the text.
        keep_seconds: keeping the new KV, behind the text.
        kept_tokens: tokens whose KV was kept.
        layer_tokens: tokens computed up to the first token, summed over the layers.
        flops: floating-point operations of that.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    prompt_tokens: int
    reuse: ReuseSplit
    repair: str
    ttft_seconds: float
    stages_seconds: dict[str, float] = field(hash=False)
    decode_seconds: float
    keep_seconds: float
    kept_tokens: int
    layer_tokens: int
    flops: int

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON-ready facts, times in milliseconds."""
        facts = asdict(self)
        for name in ("ttft", "decode", "keep"):
            facts[f"{name}_ms"] = 1000 * facts.pop(f"{name}_seconds")
        stages = facts.pop("stages_seconds")
        facts["stages_ms"] = {stage: 1000 * seconds for stage, seconds in stages.items()}
        return facts


@dataclass(frozen=True)
class WarmReport:
    """What `KVBoost.warm` did.

    Attributes:
        prompt_tokens: tokens of the text.
        kept_tokens: tokens whose KV was kept; fewer where some was kept already.
        reuse: where their KV came from.
        seconds: how long it took.
    """

    prompt_tokens: int
    kept_tokens: int
    reuse: ReuseSplit
    seconds: float


@dataclass(frozen=True)
class PlanSummary:
    """What would happen to a prompt, found without a model call.

    Attributes:
        prompt_tokens: tokens of the prompt.
        exact: tokens that would be used as they were computed.
        moved: tokens that would be moved, some of them perhaps repaired.
        computed: tokens that would have to be computed.
        repair: the strategy that would be used.
        repaired: how many of the moved tokens it would compute again, at most.
        spans: `(start, end, kind)` of the prompt's tokens, in order; kind is `exact`, `moved` or
            `computed`.
    """

    prompt_tokens: int
    exact: int
    moved: int
    computed: int
    repair: str
    repaired: int
    spans: tuple[tuple[int, int, str], ...]
