"""What bodies of all generating routes have in common, and the objects their replies share."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from coinkv.boost.plan import Reuse

MOST_CHOICES = 8
TOO_MANY_FIELDS = "too_many_fields"
MOST_STOPS = 16
_MOST_FIELDS = 100
_MOST_STOP_CHARACTERS = 512  # what a stop string costs grows with its length, at every token

ModelName = Annotated[str, StringConstraints(min_length=1, max_length=512)]
StopString = Annotated[str, StringConstraints(min_length=1, max_length=_MOST_STOP_CHARACTERS)]
Zero = Annotated[float, Field(ge=0, le=0)]
Nothing = Annotated[list[Any], Field(max_length=0)]
NoEntries = Annotated[dict[str, Any], Field(max_length=0)]


class Body(BaseModel):
    """A body as a client sends it: no field too many, no value converted."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _few_fields(cls, given: Any) -> Any:
        # each unknown field is an error of its own: a body full of them would hold up the server
        if isinstance(given, dict) and len(given) > _MOST_FIELDS:
            raise PydanticCustomError(TOO_MANY_FIELDS, "it has too many fields")
        return given


class Reply(BaseModel):
    """A reply's object; routes write them as they are, tests hold them against these."""

    model_config = ConfigDict(extra="forbid", strict=True)


class StreamOptions(Body):
    """OpenAI's `stream_options`."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class GenerationRequest(Body):
    """Fields of chat and text completions alike: OpenAI's, then coinkv's own."""

    model: ModelName
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = Field(
        None, description="0, the default, is greedy."
    )
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    stop: (
        StopString
        | Annotated[list[StopString], Field(max_length=MOST_STOPS, fail_fast=True)]
        | None
    ) = None
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None

    presence_penalty: Zero | None = None
    frequency_penalty: Zero | None = None
    logit_bias: NoEntries | None = None
    user: Any = None
    metadata: Any = None
    store: Any = None
    service_tier: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None

    reuse: Reuse | None = Field(None, description="Which kept KV may be used; `all` by default.")
    repair: Annotated[str, StringConstraints(max_length=200)] | None = Field(
        None, description="How moved KV is repaired."
    )
    deadline_seconds: Annotated[float, Field(ge=1, le=86_400)] | None = Field(
        None, description="Give up after so long; the server's own limit holds, too."
    )

    @property
    def streamed(self) -> bool:
        """Whether the reply comes as events."""
        return bool(self.stream)

    @property
    def usage_wanted(self) -> bool:
        """Whether a stream ends with the counts of tokens."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


class PromptTokensDetails(Reply):
    """Of the prompt's tokens, those whose KV was reused."""

    cached_tokens: int


class Usage(Reply):
    """Tokens of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class Timing(BaseModel):
    """How an answer came to be: times in milliseconds, tokens, and facts of its engine.

    `ttft_ms` is `queue_ms` and all of `stages_ms`.
    """

    model_config = ConfigDict(extra="allow", strict=True)
    request_id: str
    ttft_ms: float
    queue_ms: float
    stages_ms: dict[str, float]
    prompt_tokens: int
    cached_tokens: int
    decode_ms: float | None = None


FinishReason = Literal["stop", "length"]
