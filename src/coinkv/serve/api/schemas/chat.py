"""The body of a chat completion, its reply, and the chunks of its stream."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from coinkv.serve.api.schemas.generation import (
    Body,
    FinishReason,
    GenerationRequest,
    Nothing,
    Reply,
    Timing,
    Usage,
)
from coinkv.serve.settings import Condense

MOST_MESSAGES = 4096
MOST_TOP_LOGPROBS = 20

Role = Literal["system", "developer", "user", "assistant"]


class TextPart(Body):
    """A part of a message."""

    type: Literal["text"]
    text: str


class ChatMessage(Body):
    """One turn of a conversation. What an assistant's turn came with may be sent back as it is."""

    role: Role
    content: str | Annotated[list[TextPart], Field(min_length=1, max_length=MOST_MESSAGES)]
    name: Any = None
    annotations: Any = None
    refusal: Any = None
    audio: None = None
    function_call: None = None
    tool_calls: Nothing | None = None

    @property
    def text(self) -> str:
        """Its content as one text: parts stand on lines of their own."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(part.text for part in self.content)


class TextFormat(Body):
    """OpenAI's `response_format` of plain text."""

    type: Literal["text"]


class ChatRequest(GenerationRequest):
    """The body of POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MOST_MESSAGES)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_TOP_LOGPROBS)] | None = None

    tools: Nothing | None = None
    tool_choice: Literal["none"] | None = None
    functions: Nothing | None = None
    function_call: Literal["none"] | None = None
    parallel_tool_calls: Any = None
    response_format: TextFormat | None = None
    modalities: list[Literal["text"]] | None = None
    audio: None = None
    prediction: None = None
    reasoning_effort: Literal["none"] | None = None
    verbosity: None = None
    web_search_options: None = None

    method: Annotated[str, StringConstraints(max_length=200)] | None = Field(
        None, description="How a question's context is made (models coinrag/...)."
    )
    options: Annotated[dict[str, Any], Field(max_length=32)] | None = Field(
        None, description="Options of the method."
    )
    k_chunks: Annotated[int, Field(ge=1, le=10_000)] | None = None
    k_nuggets: Annotated[int, Field(ge=1, le=10_000)] | None = None
    answer_lead: Annotated[str, StringConstraints(max_length=2000)] | None = Field(
        None, description="First words of the answer, given to the model."
    )
    first_line: bool | None = Field(
        None, description="A question's answer ends with its first line; true by default."
    )
    condense: Condense | None = Field(
        None, description="How earlier turns become part of the question."
    )

    @property
    def answer_tokens(self) -> int | None:
        """Most tokens of an answer, if the body says so."""
        return self.max_completion_tokens or self.max_tokens


class CitedUrl(Reply):
    """A place in a document, and the characters `[start_index, end_index)` of the answer that it
    supports: 0, 0 for none.
    """

    url: str
    title: str
    start_index: int
    end_index: int


class Annotation(Reply):
    """A piece of evidence: characters `[start, end)` of a document, in one of its chunks."""

    index: int
    type: Literal["url_citation"]
    url_citation: CitedUrl
    document: str
    title: str
    chunk: int
    start: int
    end: int
    quote: str
    score: float
    chunk_start: int
    chunk_end: int


class TopLogprob(Reply):
    r"""A token in the place of the chosen one. Tokens that are no whole characters are written
    `bytes:\xe2\x80`.
    """

    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(TopLogprob):
    """A token of the answer."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(Reply):
    """The tokens of an answer, or of the piece of one."""

    content: list[ChatLogprob]
    refusal: None


class AnswerMessage(Reply):
    """The answer."""

    role: Literal["assistant"]
    content: str
    refusal: None
    annotations: list[Annotation] | None = None


class ChatChoice(Reply):
    """One of the answers."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason


class ChatCompletion(Reply):
    """The reply of POST /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage
    coinkv: Timing


class ChatDelta(Reply):
    """What is new in a chunk."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    annotations: list[Annotation] | None = None


class ChatChunkChoice(Reply):
    """A piece of one of the answers."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None


class ChatCompletionChunk(Reply):
    """One event of a stream; the first of each choice has `coinkv`, the last of all `usage`."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None
    coinkv: Timing | None = None
