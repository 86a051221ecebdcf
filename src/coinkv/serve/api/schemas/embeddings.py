"""The body of an embedding, and its reply."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, field_validator
from pydantic_core import PydanticCustomError

from coinkv.serve.api.schemas.generation import Body, ModelName, Reply

MOST_TEXTS = 2048

Text = Annotated[str, StringConstraints(min_length=1)]


class EmbeddingRequest(Body):
    """The body of POST /v1/embeddings."""

    model: ModelName
    input: Text | Annotated[list[Text], Field(min_length=1, max_length=MOST_TEXTS, fail_fast=True)]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Must be the model's own number."
    )
    user: Any = None

    @field_validator("input", mode="before")
    @classmethod
    def _no_token_ids(cls, given: Any) -> Any:
        if isinstance(given, list) and given and isinstance(given[0], int | list):
            raise PydanticCustomError(
                "token_ids",
                "it takes texts, not token ids: another model's would mean something else; in "
                "LangChain set check_embedding_ctx_length=False",
            )
        return given

    @property
    def texts(self) -> list[str]:
        """The texts."""
        return [self.input] if isinstance(self.input, str) else list(self.input)


class EmbeddingUsage(Reply):
    """Tokens of the texts, as the backbone's tokenizer counts them."""

    prompt_tokens: int
    total_tokens: int


class Embedding(Reply):
    """A vector of length 1: numbers, or base64 of little-endian float32."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingList(Reply):
    """The reply of POST /v1/embeddings, in the order of the texts."""

    object: Literal["list"]
    model: str
    data: list[Embedding]
    usage: EmbeddingUsage
