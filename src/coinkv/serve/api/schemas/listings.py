"""What may be asked for: models and methods, and the server's own state."""

from __future__ import annotations

from typing import Literal

from coinkv.serve.api.schemas.generation import Reply

ModelKind = Literal["backbone", "coinrag", "embedder"]


class ModelAdapter(Reply):
    """The LoRA adapter that answers: its name, and the digest of its weights."""

    name: str
    digest: str


class Model(Reply):
    """A model as OpenAI describes one, and what it does here."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    kind: ModelKind
    index: str | None
    adapter: ModelAdapter | None


class ModelList(Reply):
    """The reply of GET /v1/models."""

    object: Literal["list"]
    data: list[Model]


class MethodEntry(Reply):
    """A method of question answering: its name, one line about it, whether it is the default."""

    id: str
    object: Literal["method"]
    note: str
    default: bool


class MethodList(Reply):
    """The reply of GET /v1/methods."""

    object: Literal["list"]
    data: list[MethodEntry]


class LoadReply(Reply):
    """What the scheduler has to do now."""

    queued: int
    prefilling: int
    decoding: int
    slots: int
    live_tokens: int
    waiting_clients: int


class Limits(Reply):
    """What a request may ask for, and how much may wait."""

    answer_tokens: int
    most_answer_tokens: int
    slots: int
    queue: int
    live_tokens: int
    deadline_seconds: float
    requests_per_minute: int | None
    max_body_bytes: int
    max_upload_bytes: int
    max_files: int


class Status(Reply):
    """The reply of GET /v1/status; what is null is not known before the model is loaded."""

    object: Literal["status"]
    version: str
    model: str
    context_length: int | None
    embedder: str | None
    ready: bool
    needs_key: bool
    load: LoadReply | None
    limits: Limits
