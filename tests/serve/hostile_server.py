"""A server to be attacked: a tiny model that answers chats, an index, limits that are soon met."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from chatting import CHAT, CONTEXT, TEMPLATE
from in_process_library import InProcessIndexer
from serving import Running, running, settings_for

from coinkv.model.load import load
from coinkv.model.threads import one_thread
from coinkv.rag.build import BuildOptions, build
from coinkv.serve.security import body, connections
from coinkv.serve.settings import ServeSettings
from small_corpus import CHUNK_TOKENS, write_documents
from tiny_models import save_tiny_model


@contextmanager
def attacked(folder: Path, **chosen: object) -> Iterator[Running]:
    """Serve inside the block; documents are indexed in this process."""
    model = {"model_type": "llama", "max_position_embeddings": CONTEXT}
    with one_thread():
        saved = save_tiny_model(folder / CHAT, model, chat_template=TEMPLATE)
        backbone = replace(load(str(saved), device="cpu"), end_token_ids=frozenset())
        documents = write_documents(folder / "documents")
        build(documents, folder / "index", BuildOptions(model=backbone, chunk_tokens=CHUNK_TOKENS))
    small = {
        "answer_tokens": 4,
        "most_answer_tokens": 64,
        "max_body_bytes": 200_000,
        "max_upload_bytes": 300_000,
        "deadline_seconds": 30.0,
    }
    given = {"model": str(saved), "indexes": (folder / "index",), **small, **chosen}
    settings = settings_for(folder, **given)
    gate = threading.Event()
    gate.set()

    def in_process(settings: ServeSettings, busy: object) -> InProcessIndexer:
        return InProcessIndexer(backbone, gate)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("coinkv.serve.library.indexing.Indexer", in_process)
        patched.setattr(connections.BoundedH11, "head_seconds", 1.0)
        patched.setattr(connections, "KEEP_ALIVE_SECONDS", 1)
        patched.setattr(body, "BODY_SECONDS", 1.0)
        patched.setattr(body, "LINGER_SECONDS", 0.3)
        with running(settings, backbone) as server:
            yield server
