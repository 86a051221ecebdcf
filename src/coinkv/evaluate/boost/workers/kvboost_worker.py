"""The peer kvboost (PyPI, 0.9.0) behind the wire, with the settings its authors measured with.

Run by the interpreter of an environment of its own; what it knows of coinkv is `wire.py` beside it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coinkv.evaluate.boost.workers.wire import Answer, serve
else:
    from wire import serve

RECOMMENDED = {
    "chunk_size": 128,
    "chunk_boundary_window": 16,
    "overlap_k": 16,
    "sink_tokens": 32,
}
"""Settings of its published benchmark, where `recompute_strategy` is `cacheblend`."""


def load(settings: dict[str, Any]) -> tuple[Answer, dict[str, Any]]:
    """The engine in float32: its own loader knows float16 only, which a CPU computes slowly."""
    torch = importlib.import_module("torch")
    transformers = importlib.import_module("transformers")
    kvboost = importlib.import_module("kvboost")
    torch.set_num_threads(settings["threads"])
    tokenizer = transformers.AutoTokenizer.from_pretrained(settings["model"])
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    model = transformers.AutoModelForCausalLM.from_pretrained(
        settings["model"], dtype=getattr(torch, settings["dtype"])
    ).eval()
    engine = kvboost.KVBoost(
        model=model,
        tokenizer=tokenizer,
        device=settings["device"],
        max_cache_bytes=settings["budget_bytes"],
        recompute_strategy=settings["strategy"],
        **RECOMMENDED,
    )
    versions = {"kvboost": version("kvboost"), "torch": torch.__version__}
    return _answer(engine, _added_bos(tokenizer)), versions


def _answer(engine: Any, bos: str) -> Answer:
    def answer(prompt: str, max_new_tokens: int, on_first: Callable[[], None]) -> dict[str, Any]:
        token_ids: list[int] = []

        def on_token(token: int) -> None:
            if not token_ids:
                on_first()
            token_ids.append(token)

        before = engine.cache_manager.stats()["approximate_hits"]
        result = engine.generate(
            prompt.removeprefix(bos), max_new_tokens, do_sample=False, on_token=on_token
        )
        approximate = engine.cache_manager.stats()["approximate_hits"] > before
        reused = result.cached_tokens
        return {
            "text": result.output_text,
            "token_ids": token_ids,
            "prompt_tokens": result.prompt_tokens,
            # it tells how many tokens it reused, not how many of them it computed again
            "reuse": {
                "exact": 0 if approximate else reused,
                "moved": reused if approximate else 0,
                "repaired": 0,
                "computed": result.prompt_tokens - reused,
            },
        }

    return answer


def _added_bos(tokenizer: Any) -> str:
    """The beginning-of-sequence text that its tokenizer adds; prompts come with theirs."""
    bos = tokenizer.bos_token or ""
    added = bos and tokenizer("a")["input_ids"][0] == tokenizer.bos_token_id
    return bos if added else ""


if __name__ == "__main__":
    serve(load)
