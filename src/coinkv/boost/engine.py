"""KVBoost: any prompt to any model whose KV can be moved, reusing all KV that was made before."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

import numpy as np
import torch

from coinkv.boost.cache import CacheStats, ReuseCache
from coinkv.boost.chunks import Boundaries, Vocabulary, chunker_named, require_chunker
from coinkv.boost.keys import Ids, salted
from coinkv.boost.plan import Reuse, require_reuse
from coinkv.boost.prefill import FirstToken, Prefiller
from coinkv.boost.result import BoostResult, PlanSummary, ReuseSplit, WarmReport
from coinkv.boost.stream import BoostStream, decoded_together, result_of
from coinkv.boost.verify import (
    LEAST_ANSWERS,
    LEAST_TOP1,
    VERIFIED,
    Progress,
    VerifyReport,
    verify,
)
from coinkv.config import BOOST_CHUNK_TOKENS, DEFAULT_MODEL
from coinkv.errors import InputError
from coinkv.kv.codec import CodecName
from coinkv.model.backbone import Backbone
from coinkv.model.chat import AnyPrompt, prompt_ids, require_list
from coinkv.model.clock import StageClock
from coinkv.model.decode import Sampling
from coinkv.model.decode_batch import Decoded
from coinkv.model.load import load
from coinkv.repair.base import Strategy
from coinkv.repair.nothing import Nothing
from coinkv.repair.strategies import require_strategy, strategy_named
from coinkv.store.tiers import Tiers

LEAST_REUSE = 0.125
"""Default of the share of a prompt below which nothing of it is reused."""
MANY = 8
"""Answers that `generate_many` decodes together."""


@dataclass(frozen=True)
class BoostStats:
    """What an engine has done, and what is kept.

    Attributes:
        prompts: prompts prefilled by this engine.
        reuse: where the KV of their tokens came from.
        cache: what is kept.
    """

    prompts: int
    reuse: ReuseSplit
    cache: CacheStats


class KVBoost:
    """Generation that computes only what it never computed before (arXiv 2608.21362).

    What stands behind the very same tokens is reused exactly; a passage that was seen anywhere else
    is moved to its place and repaired. Safe to use from many threads. Close it, or use it in a
    `with` block, to have the folder know how often everything was used.

    Args:
        backbone: the model.
        tiers: where KV is kept.
        boundaries: how prompts are cut into chunks: `content`, `fixed` or `adaptive`.
        chunk_tokens: tokens of a chunk, about.
        repair: how moved tokens are repaired: a strategy, or the name of one: `auto`, `selective`,
            `cacheblend`, `epic`, `none`.
        namespace: KV is found again under the same namespace only.
        least_reuse: share of a prompt's tokens below which nothing of it is reused: one pass over
            all of it, without a mask, is faster then.

    Raises:
        InputError: there are no such boundaries or strategy, or a number is out of range.
    """

    def __init__(
        self,
        backbone: Backbone,
        tiers: Tiers,
        *,
        boundaries: Boundaries = "content",
        chunk_tokens: int = BOOST_CHUNK_TOKENS,
        repair: str | Strategy = "auto",
        namespace: str = "",
        least_reuse: float = LEAST_REUSE,
    ) -> None:
        self.backbone = backbone
        vocabulary = Vocabulary(backbone.text_tokenizer, backbone.tokenizer.all_special_ids)
        chunker = chunker_named(boundaries, vocabulary, chunk_tokens)
        salt = salted(backbone.fingerprint, tiers.codec, namespace)
        self._cache = ReuseCache(tiers, backbone.fingerprint, salt)
        if not 0 <= least_reuse <= 1:
            raise InputError(f"least_reuse is {least_reuse}", hint="use a share from 0 to 1")
        self._prefiller = Prefiller(backbone, self._cache, chunker, least_reuse)
        self._strategies: dict[str, Strategy] = {}
        self._strategy = self._strategy_of(repair)
        self._lock = threading.Lock()
        self._prompts, self._split = 0, ReuseSplit()

    @classmethod
    def from_pretrained(
        cls,
        model: str | Path | Backbone = DEFAULT_MODEL,
        *,
        budget_bytes: int,
        folder: str | Path | None = None,
        disk_budget_bytes: int | None = None,
        codec: CodecName = "raw",
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        max_context: int | None = None,
        boundaries: Boundaries = "content",
        chunk_tokens: int = BOOST_CHUNK_TOKENS,
        repair: str | Strategy = "auto",
        namespace: str = "",
        least_reuse: float = LEAST_REUSE,
    ) -> KVBoost:
        """Load a model and open a cache for it.

        Args:
            model: hub name, folder, the embedded default, or a loaded backbone.
            budget_bytes: most bytes of KV in memory.
            folder: keep KV on disk, too: it survives, and other processes find it.
            disk_budget_bytes: most bytes of KV in the folder; None: no limit.
            codec: how KV is stored: `raw` (bit for bit), `int8` or `kivi` (a fifth of float32's
                bytes; reuse behind the same tokens is then as exact as the codec).
            device: `cpu`, `cuda` or `mps`; by default the best there is.
            dtype: computing dtype; by default float32 on a CPU, 16 bit elsewhere.
            max_context: promise to stay within so many tokens.
            boundaries: as for the class, like the options below.
            chunk_tokens: tokens of a chunk, about.
            repair: how moved tokens are repaired.
            namespace: KV is found again under the same namespace only.
            least_reuse: share of a prompt below which nothing of it is reused.

        Raises:
            InputError: an option cannot be used.
            ModelNotFoundError: no such model.
            UnsupportedModelError: KV of this model cannot be moved exactly.
            StorageError: the folder cannot be used.
        """
        require_chunker(boundaries, chunk_tokens)  # before a folder is made
        if not isinstance(namespace, str) or (folder is not None and not str(folder)):
            raise InputError(
                f"namespace is {namespace!r}, folder is {folder!r}",
                hint="a namespace is a text, and a folder has a name",
            )
        if isinstance(repair, str):
            require_strategy(repair)
        if not isinstance(model, Backbone):
            model = load(str(model), device=device, dtype=dtype, max_context=max_context)
        return cls(
            model,
            Tiers(
                budget_bytes,
                codec=codec,
                folder=None if folder is None else Path(folder),
                disk_budget_bytes=disk_budget_bytes,
            ),
            boundaries=boundaries,
            chunk_tokens=chunk_tokens,
            repair=repair,
            namespace=namespace,
            least_reuse=least_reuse,
        )

    def generate(
        self,
        prompt: AnyPrompt,
        max_new_tokens: int | None = None,
        *,
        sampling: Sampling | None = None,
        reuse: Reuse = "all",
        repair: str | Strategy | None = None,
    ) -> BoostResult:
        """Continue a prompt.

        Args:
            prompt: a text, token ids, or chat messages with `role` and `content`.
            max_new_tokens: most tokens of the text; overrides `sampling.max_tokens`. 0 gives none.
            sampling: how to choose tokens and when to end; greedy by default.
            reuse: `all`; `exact`: only what stands behind the very same tokens; `none`: compute
                everything, keep nothing.
            repair: a strategy for this prompt, in place of the usual one.

        Raises:
            InputError: the prompt is empty or does not fit into the context window.
        """
        stream = self.stream(prompt, max_new_tokens, sampling=sampling, reuse=reuse, repair=repair)
        for _ in stream:
            pass
        return stream.result

    def stream(
        self,
        prompt: AnyPrompt,
        max_new_tokens: int | None = None,
        *,
        sampling: Sampling | None = None,
        reuse: Reuse = "all",
        repair: str | Strategy | None = None,
    ) -> BoostStream:
        """Continue a prompt piece by piece: iterate over the text, then read `.result`.

        The first token is computed when this returns. The new KV is kept when the text ends, or
        when the stream is closed before. Arguments and errors as for `generate`.
        """
        chosen = _sampling(sampling, max_new_tokens)
        first = self.first_token(
            prompt, answer_tokens=chosen.max_tokens, reuse=reuse, repair=repair
        )
        return BoostStream(self._prefiller, first, chosen)

    def generate_many(
        self,
        prompts: Sequence[AnyPrompt],
        max_new_tokens: int | None = None,
        *,
        sampling: Sampling | None = None,
        reuse: Reuse = "all",
        repair: str | Strategy | None = None,
    ) -> list[BoostResult]:
        """Continue several prompts; up to eight texts are decoded together.

        Each result is what `generate` would give for that prompt alone: prompts of one call reuse
        each other's KV where that is exact, and otherwise what was kept before the call. Of the
        answers no KV is kept. Arguments and errors as for `generate`; a prompt that does not fit is
        refused before anything is computed.
        """
        require_list(prompts)
        chosen = _sampling(sampling, max_new_tokens)
        every = [self._ids(prompt).tolist() for prompt in prompts]
        movable = self._cache.keys()
        results: list[BoostResult] = []
        for at in range(0, len(every), MANY):
            firsts, kept = [], []
            for ids in every[at : at + MANY]:
                first = self.first_token(
                    ids,
                    answer_tokens=chosen.max_tokens,
                    reuse=reuse,
                    repair=repair,
                    movable=movable,
                )
                firsts.append(first)
                kept.append(self.keep(first))
            results += decoded_together(self._prefiller, firsts, kept, chosen)
        return results

    def first_token(
        self,
        prompt: AnyPrompt,
        *,
        answer_tokens: int = 1,
        reuse: Reuse = "all",
        repair: str | Strategy | None = None,
        movable: frozenset[str] | None = None,
    ) -> FirstToken:
        """Take a prompt as far as its first token's logits; see `keep` to keep its KV.

        Args:
            prompt: as for `generate`.
            answer_tokens: room left for an answer.
            reuse: as for `generate`.
            repair: as for `generate`.
            movable: keys of the runs that may be moved; None: all.
        """
        require_reuse(reuse)
        strategy = self._strategy if repair is None else self._strategy_of(repair)
        clock = StageClock(self.backbone.synchronize)
        ids = self._ids(prompt)
        clock.lap("tokenize")
        first = self._prefiller.first_token(
            ids,
            clock,
            answer_tokens=answer_tokens,
            reuse=reuse,
            strategy=strategy,
            movable=movable,
        )
        with self._lock:
            self._prompts += 1
            self._split += first.placed.split
        return first

    def keep(self, first: FirstToken) -> int:
        """Keep the new KV of a prompt that `first_token` computed; returns the tokens kept."""
        return self._prefiller.keep(first)

    def complete(self, first: FirstToken, decoded: Decoded, decode_seconds: float) -> BoostResult:
        """Keep the KV of a prompt that `first_token` computed and somebody decoded.

        Args:
            first: the prompt; its cache holds the KV of all tokens of the answer that may be kept.
            decoded: the answer, as far as it came.
            decode_seconds: from the first token's logits to the end.
        """
        started = time.perf_counter()
        kept = self._prefiller.keep(first, decoded.token_ids)
        return result_of(
            self._prefiller,
            first,
            decoded,
            decode_seconds=decode_seconds,
            keep_seconds=time.perf_counter() - started,
            kept_tokens=kept,
        )

    def warm(self, prompt: AnyPrompt) -> WarmReport:
        """Compute the KV of a text and keep it, for prompts that will hold it.

        It is reused exactly where a prompt begins with the same tokens, and moved elsewhere.

        Raises:
            InputError: the text is empty or does not fit into the context window.
        """
        started = time.perf_counter()
        first = self.first_token(prompt, answer_tokens=0)
        kept = self.keep(first)
        split = first.placed.split
        return WarmReport(split.total, kept, split, time.perf_counter() - started)

    def plan(
        self, prompt: AnyPrompt, *, reuse: Reuse = "all", repair: str | Strategy | None = None
    ) -> PlanSummary:
        """What would be reused and computed for a prompt; calls no model."""
        require_reuse(reuse)
        strategy = self._strategy if repair is None else self._strategy_of(repair)
        return self._prefiller.intent(self._ids(prompt), reuse, strategy).summary()

    def pin(self, prompt: AnyPrompt) -> int:
        """Keep the KV of a text from being evicted; returns its tokens.

        Raises:
            InputError: nothing of the text is kept.
        """
        return self._pinned(prompt, pinned=True)

    def unpin(self, prompt: AnyPrompt) -> int:
        """Allow the KV of a text to be evicted again; returns its tokens.

        Raises:
            InputError: nothing of the text is kept.
        """
        return self._pinned(prompt, pinned=False)

    def invalidate(self, prompt: AnyPrompt | None = None) -> int:
        """Forget all KV that was made of any part of a text, or all; returns the runs forgotten.

        A part is 16 consecutive tokens, or the whole text where it is shorter.
        """
        if prompt is None:
            return self._cache.forget(None)
        ids = self._ids(prompt)
        # in the middle of a prompt the text stands without it
        begins = len(ids) > 1 and ids[0] == self.backbone.tokenizer.bos_token_id
        return self._cache.forget(ids[1:] if begins else ids)

    def verify(
        self,
        prompts: Sequence[AnyPrompt],
        *,
        answer_tokens: int = 32,
        strategies: Sequence[str | Strategy] = VERIFIED,
        least_top1: float = LEAST_TOP1,
        least_answers: float = LEAST_ANSWERS,
        on_progress: Progress | None = None,
    ) -> VerifyReport:
        """Measure on your own prompts which repair strategy is close enough to full prefill.

        Every prompt is answered greedily by full prefill and, for each strategy, with reuse: in the
        order given, over a cache in memory with this engine's options and memory budget, which
        begins empty. What this engine keeps is neither used nor changed. It costs one full prefill
        a prompt, and as much again for each strategy as reuse leaves to compute, plus the answers.

        Safe enough is a strategy whose first token is full prefill's in `least_top1` of the prompts
        that reused moved KV, and whose whole answer is in `least_answers` of them.

        Args:
            prompts: as for `generate`, in the order in which they would come.
            answer_tokens: most tokens of an answer.
            strategies: names, or strategies with options.
            least_top1: share of first tokens that must agree, 0 to 1.
            least_answers: share of answers that must be the same token by token, 0 to 1.
            on_progress: called with a stage, its answers so far and all of them.

        Raises:
            InputError: a prompt is empty or does not fit into the context window, there is none,
                or a strategy does not exist.
        """
        return verify(
            self._prefiller,
            prompts,
            {str(each): self._strategy_of(each) for each in strategies},
            answer_tokens=answer_tokens,
            least_top1=least_top1,
            least_answers=least_answers,
            on_progress=on_progress,
        )

    def stats(self) -> BoostStats:
        """What this engine has done, and what is kept."""
        with self._lock:
            prompts, split = self._prompts, self._split
        return BoostStats(prompts, split, self._cache.stats())

    def close(self) -> None:
        """Write down how often everything was used, let go of the folder, and answer no more."""
        self._cache.close()

    def __enter__(self) -> KVBoost:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _ids(self, prompt: AnyPrompt) -> Ids:
        ids = np.array(prompt_ids(self.backbone, prompt), np.int32)
        self.backbone.require_room(len(ids), "the prompt", hint="shorten it")
        return ids

    def _strategy_of(self, repair: str | Strategy) -> Strategy:
        if not isinstance(repair, str):
            return repair
        if repair not in self._strategies:  # `auto` measures the machine, once
            self._strategies[repair] = strategy_named(repair, self.backbone)
        return self._strategies[repair]

    def _pinned(self, prompt: AnyPrompt, *, pinned: bool) -> int:
        ids = self._ids(prompt)
        intent = self._prefiller.intent(ids, "all", Nothing())
        if not intent.plan.parts:
            raise InputError("nothing of this text is kept", hint="warm it first")
        return self._cache.pin(intent.plan, pinned=pinned)


def _sampling(sampling: Sampling | None, max_new_tokens: int | None) -> Sampling:
    chosen = sampling or Sampling()
    return chosen if max_new_tokens is None else replace(chosen, max_tokens=max_new_tokens)
