"""Models: the names that clients may use, and the tasks that stand behind them."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from coinkv.boost.engine import KVBoost
from coinkv.boost.plan import Reuse
from coinkv.errors import ModelNotFoundError
from coinkv.model.backbone import Backbone
from coinkv.model.chat import AnyPrompt, Message
from coinkv.model.decode import Sampling
from coinkv.rag.adapters import LoadedAdapter
from coinkv.rag.answer import AdapterUsed
from coinkv.repair.base import Strategy
from coinkv.repair.strategies import strategy_named
from coinkv.retrieval.embed import Embedder
from coinkv.serve.engines.prompts import PromptTask
from coinkv.serve.engines.questions import QuestionOptions, QuestionTask
from coinkv.serve.library.library import Library
from coinkv.serve.security.keys import DEFAULT_NAMESPACE
from coinkv.serve.settings import ServeSettings
from coinkv.store.stats import TierStats
from coinkv.store.tiers import Tiers

INDEX_PREFIX = "coinrag/"
"""Names of indexes begin with it: the model `coinrag/law` answers over the index `law`."""

ModelKind = Literal["backbone", "coinrag", "embedder"]


@dataclass(frozen=True)
class ModelInfo:
    """A name that clients may use.

    Attributes:
        id: the name.
        kind: what stands behind it.
        created: Unix time since when.
        index: the index that it answers over.
        adapter: the LoRA adapter that answers with the backbone.
    """

    id: str
    kind: ModelKind
    created: int
    index: str | None = None
    adapter: AdapterUsed | None = None


class Models:
    """What answers, by name and namespace. Safe to use from many threads.

    KV is kept in one set of tiers, and found again within its namespace only.

    Args:
        settings: of the server.
        backbone: the model, which takes turns.
        embedder: the embedder, which takes turns, too.
        embedder_name: its name.
        library: the indexes.
        adapter: answers questions to the indexes; prompts never.
    """

    def __init__(
        self,
        settings: ServeSettings,
        backbone: Backbone,
        embedder: Embedder,
        embedder_name: str,
        library: Library,
        adapter: LoadedAdapter | None = None,
    ) -> None:
        self.backbone, self.embedder, self.embedder_name = backbone, embedder, embedder_name
        self.backbone_name = public_name(settings.model)
        self._settings, self._library, self._adapter = settings, library, adapter
        self._created = int(time.time())
        folder = None if settings.disk_bytes is None else settings.data_dir / "kv"
        self._tiers = Tiers(
            settings.memory_bytes,
            codec=settings.codec,
            folder=folder,
            disk_budget_bytes=settings.disk_bytes,
        )
        self._repair: Strategy = strategy_named(settings.repair, backbone)
        self._engines: dict[str, KVBoost] = {}
        self._lock = threading.Lock()

    def list(self, namespace: str) -> tuple[ModelInfo, ...]:
        """All names of a namespace."""
        used = None if self._adapter is None else self._adapter.used
        own = [
            ModelInfo(self.backbone_name, "backbone", self._created),
            ModelInfo(self.embedder_name, "embedder", self._created),
        ]
        own += [
            ModelInfo(f"{INDEX_PREFIX}{entry.name}", "coinrag", self._created, entry.name, used)
            for entry in self._library.entries(namespace)
        ]
        known = {info.id: info for info in own}
        aliases = [
            replace(known[name], id=alias)
            for alias, name in self._settings.aliases.items()
            if name in known and alias not in known
        ]
        return (*own, *aliases)

    def find(self, namespace: str, name: str) -> ModelInfo:
        """What stands behind a name.

        Raises:
            ModelNotFoundError: nothing.
        """
        every = self.list(namespace)
        found = next((info for info in every if info.id == name), None)
        if found is None:
            some = ", ".join(info.id for info in every[:8])
            raise ModelNotFoundError(f"there is no model {name[:200]!r}", hint=f"use one of {some}")
        return found

    def prompt(
        self,
        namespace: str,
        prompt: AnyPrompt,
        *,
        answer_tokens: int,
        reuse: Reuse = "all",
        repair: str | None = None,
    ) -> PromptTask:
        """A prompt for the backbone; arguments as for `PromptTask`."""
        return PromptTask(
            lambda: self._engine(namespace),
            self.backbone,
            prompt,
            answer_tokens=answer_tokens,
            reuse=reuse,
            repair=repair,
        )

    def question(
        self,
        namespace: str,
        index: str,
        messages: Sequence[Message],
        *,
        options: QuestionOptions,
        answer_tokens: int,
    ) -> QuestionTask:
        """A question to an index; arguments as for `QuestionTask`."""
        chosen = replace(options, condense=options.condense or self._settings.condense)
        return QuestionTask(
            lambda: self._library.open(namespace, index),
            self.backbone,
            self._adapter,
            messages,
            chosen,
            answer_tokens=answer_tokens,
            generate=lambda chat, tokens: self._continued(namespace, chat, tokens),
        )

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors of texts, float32 `[n, dimension]`, each of length 1."""
        return self.embedder.embed(texts)

    def store(self, namespace: str) -> dict[str, Any]:
        """What is kept and how often it was found, JSON-ready.

        The tiers are shared by all namespaces, so only the operator's sees their figures.
        """
        stats = self._engine(namespace).stats()
        shared = stats.cache.tiers if namespace == DEFAULT_NAMESPACE else None
        return {
            "tiers": [] if shared is None else _tiers(shared),
            "misses": 0 if shared is None else shared.misses,
            "hit_rate": (
                0.0
                if shared is None
                else _share(shared.memory_hits + shared.disk_hits, shared.lookups)
            ),
            "damaged": 0 if shared is None else shared.damaged,
            "runs": stats.cache.runs,
            "exact_runs": stats.cache.exact_runs,
            "tokens": stats.cache.tokens,
            "prompts": stats.prompts,
            "reuse": asdict(stats.reuse),
            "reuse_rate": _share(stats.reuse.exact + stats.reuse.moved, stats.reuse.total),
            "indexes": [
                {
                    "id": entry.name,
                    "documents": entry.contents.documents,
                    "chunks": entry.contents.chunks,
                    "kv_bytes": entry.contents.kv_bytes,
                }
                for entry in self._library.entries(namespace)
            ],
        }

    def warm(self, namespace: str) -> None:
        """Make the engine of a namespace before its first request."""
        self._engine(namespace)

    def close(self) -> None:
        """Write down how often KV was used, and let go of its folder."""
        self._tiers.close()

    def _continued(self, namespace: str, chat: Sequence[Message], tokens: int) -> str:
        sampling = Sampling(tokens, first_line=True)
        return self._engine(namespace).generate(chat, sampling=sampling).text

    def _engine(self, namespace: str) -> KVBoost:
        with self._lock:
            if namespace not in self._engines:
                self._engines[namespace] = KVBoost(
                    self.backbone, self._tiers, repair=self._repair, namespace=namespace
                )
            return self._engines[namespace]


def public_name(model: str) -> str:
    """A model's name for clients: of a folder on this machine only its last part."""
    folder = Path(model).expanduser()
    return folder.resolve().name if folder.is_dir() else model


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _tiers(stats: TierStats) -> list[dict[str, Any]]:
    return [
        {
            "name": "memory",
            "blocks": stats.memory_blocks,
            "bytes": stats.memory_bytes,
            "budget_bytes": stats.memory_budget_bytes,
            "hits": stats.memory_hits,
            "evictions": stats.memory_evictions,
        },
        {
            "name": "disk",
            "blocks": stats.disk_blocks,
            "bytes": stats.disk_bytes,
            "budget_bytes": stats.disk_budget_bytes,
            "hits": stats.disk_hits,
            "evictions": stats.disk_evictions,
        },
    ]
