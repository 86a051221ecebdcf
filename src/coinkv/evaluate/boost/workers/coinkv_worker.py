"""coinkv's own systems behind the wire: KVBoost, told what to reuse and how to repair."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coinkv.evaluate.boost.workers.wire import Answer, serve


def load(settings: dict[str, Any]) -> tuple[Answer, dict[str, Any]]:
    """The engine; `reuse` is `none` for full recomputation, `exact` for prefix reuse, or `all`."""
    import torch
    import transformers

    from coinkv import __version__
    from coinkv.boost.engine import KVBoost

    torch.set_num_threads(settings["threads"])
    names = ("budget_bytes", "device", "dtype", "codec", "boundaries", "chunk_tokens", "repair")
    boost = KVBoost.from_pretrained(
        settings["model"], **{name: settings[name] for name in names if name in settings}
    )
    versions = {
        "coinkv": __version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    return _answer(boost, settings["reuse"]), versions


def _answer(boost: Any, reuse: str) -> Answer:
    def answer(prompt: str, max_new_tokens: int, on_first: Callable[[], None]) -> dict[str, Any]:
        stream = boost.stream(prompt, max_new_tokens=max_new_tokens, reuse=reuse)
        pieces = iter(stream)
        next(pieces, None)
        on_first()
        for _ in pieces:
            pass
        result = stream.result
        return {
            "text": result.text,
            "token_ids": list(result.token_ids),
            "prompt_tokens": result.prompt_tokens,
            "reuse": {
                "exact": result.reuse.exact,
                "moved": result.reuse.moved,
                "repaired": result.reuse.repaired,
                "computed": result.reuse.computed,
            },
            "repair": result.repair,
            "stages_ms": {
                stage: 1000 * seconds for stage, seconds in result.stages_seconds.items()
            },
        }

    return answer


if __name__ == "__main__":
    serve(load)
