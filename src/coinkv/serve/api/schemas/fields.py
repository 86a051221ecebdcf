"""Names of the fields of all bodies: what an error may be about."""

from __future__ import annotations

from coinkv.serve.api.schemas.chat import ChatRequest
from coinkv.serve.api.schemas.completions import CompletionRequest
from coinkv.serve.api.schemas.embeddings import EmbeddingRequest

FIELDS: frozenset[str] = frozenset().union(
    *(body.model_fields for body in (ChatRequest, CompletionRequest, EmbeddingRequest))
)
