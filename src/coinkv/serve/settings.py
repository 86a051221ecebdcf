"""Settings of the server: options of `coinkv serve`, or environment variables of the same names."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import platformdirs
from pydantic import Field, StringConstraints
from pydantic_settings import BaseSettings, SettingsConfigDict

from coinkv.config import DEFAULT_MODEL

Condense = Literal["auto", "model", "join", "off"]
IndexName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


def _data_dir() -> Path:
    return Path(platformdirs.user_data_dir("coinkv")) / "server"


class ServeSettings(BaseSettings):
    """How a server is run. Every field is read from `COINKV_SERVE_<NAME>` where it is not given."""

    model_config = SettingsConfigDict(
        env_prefix="COINKV_SERVE_", extra="ignore", frozen=True, env_parse_none_str="none"
    )

    host: str = Field("127.0.0.1", description="Address to listen on; loopback by default.")
    port: int = Field(8000, ge=0, le=65535, description="Port; 0 takes a free one.")
    data_dir: Path = Field(
        default_factory=_data_dir,
        description="Where API keys, uploaded documents, their indexes and reusable KV are kept.",
    )
    indexes: tuple[Path, ...] = Field((), description="Indexes to serve besides those of data_dir.")
    docs: Path | None = Field(None, description="A folder of documents to index and serve.")

    model: str = Field(DEFAULT_MODEL, description="Backbone: hub name or folder.")
    device: str | None = Field(None, description="cpu, cuda or mps; by default the best there is.")
    dtype: str | None = Field(None, description="float32, float16 or bfloat16.")
    max_context: int | None = Field(
        None, ge=1, description="Promise to stay within so many tokens."
    )
    threads: int | None = Field(None, ge=1, description="CPU threads of a forward pass.")
    aliases: dict[str, str] = Field(
        default_factory=dict, description="Other names of models, as JSON: alias to name."
    )

    adapter: str | None = Field(
        "default",
        description="Adapter that answers questions over an index: a name, a folder, `default` "
        "(the one that ships for the model, if one does) or `none`.",
    )
    method: str = Field("coinrag", description="Method that answers questions over an index.")
    method_options: dict[str, Any] = Field(
        default_factory=dict,
        description="Options of this method, as JSON; what a request says goes first. Files, such "
        "as KVLink's `embeddings`, can be named here only.",
    )
    condense: Condense = Field("auto", description="How earlier turns of a chat are condensed.")
    answer_tokens: int = Field(
        256, ge=1, description="Most tokens of an answer where the request says nothing."
    )
    most_answer_tokens: int = Field(4096, ge=1, description="Most a request may ask for.")

    memory_bytes: int = Field(2_000_000_000, ge=0, description="Reusable KV kept in memory.")
    disk_bytes: int | None = Field(
        20_000_000_000, ge=0, description="Reusable KV kept in data_dir; none without a number."
    )
    codec: Literal["raw", "int8", "kivi"] = Field("raw", description="How reusable KV is stored.")
    repair: str = Field("auto", description="How moved KV is repaired.")

    slots: int = Field(16, ge=1, description="Requests computed at a time.")
    prefills: int = Field(4, ge=1, description="Of these, prompts computed at a time.")
    queue: int = Field(128, ge=0, description="Requests that may wait; more get 429.")
    pass_tokens: int = Field(
        512, ge=16, description="Tokens of a prompt computed at once; streams wait no longer."
    )
    live_tokens: int = Field(
        65_536, ge=1, description="Tokens of all prompts and answers computed at a time."
    )
    deadline_seconds: float = Field(300.0, gt=0, le=86_400, description="Most time of a request.")
    shutdown_seconds: float = Field(
        30.0, ge=0, le=3600, description="Time streams have to end at shutdown."
    )

    indexing_share: float = Field(
        0.2, gt=0, le=1, description="Share of the time that indexing computes beside answers."
    )
    index_codec: Literal["raw", "int8", "kivi"] = Field(
        "raw", description="How the KV of indexed documents is stored."
    )
    max_body_bytes: int = Field(2_000_000, ge=1, description="Largest body of a request.")
    max_upload_bytes: int = Field(50_000_000, ge=1, description="Largest upload.")
    max_files: int = Field(200, ge=1, description="Most files of an upload.")
    parse_seconds: float = Field(30.0, gt=0, le=3600, description="Time to read one uploaded file.")
    parse_memory_bytes: int = Field(
        1_000_000_000, ge=1, description="Memory to read one uploaded file."
    )

    open_access: bool = Field(
        False, description="Serve without API keys even beyond loopback. Say it only on purpose."
    )
    allowed_hosts: tuple[str, ...] = Field(
        (), description="Host names clients may use; by default the address and loopback names."
    )
    cors_origins: tuple[str, ...] = Field((), description="Web pages elsewhere that may call.")
    requests_per_minute: int | None = Field(
        None, ge=1, description="Limit of each client; a key's own limit goes first."
    )

    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Logs.")
    log_format: Literal["auto", "json", "console"] = Field(
        "auto", description="json where the output is no terminal."
    )
    otlp_endpoint: str | None = Field(
        None, description="Send OpenTelemetry traces there (extra `otel`)."
    )
