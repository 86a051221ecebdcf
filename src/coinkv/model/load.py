"""From a model's name to a backbone whose KV is known to move exactly."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import uuid
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from coinkv.config import DEFAULT_MODEL, home
from coinkv.errors import InputError, UnsupportedModelError
from coinkv.kv.block import KVShape
from coinkv.kv.rope import Rope
from coinkv.model.backbone import Backbone
from coinkv.model.fingerprint import fingerprint, model_digest
from coinkv.model.gate import GateReport, Rung, check_backbone, probe_ids, probe_text
from coinkv.model.pretrained import Weights, open_weights
from coinkv.model.rotation import Probe, measure_rotation

_GATE_VERSION = 2
_SHORTEST_CONTEXT = 128


def load(
    name: str = DEFAULT_MODEL,
    *,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    max_context: int | None = None,
) -> Backbone:
    """Load a model; on first use the gate measures it, later its kept verdict is used.

    Args:
        name: hub name, folder, or the embedded default.
        device: `cpu`, `cuda` or `mps`; by default the best there is.
        dtype: computing dtype; by default float32 on a CPU, 16 bit elsewhere.
        max_context: promise to stay within this many tokens. Lets models pass whose frequencies
            change beyond some length.

    Raises:
        ModelNotFoundError: no such model.
        UnsupportedModelError: its KV cannot be moved exactly; says why.
    """
    backbone, report = measured(name, device=device, dtype=dtype, max_context=max_context)
    if not report.passed:
        raise UnsupportedModelError(
            f"KV of this model cannot be moved exactly: {report.reason}",
            where=name,
            hint=report.hint,
        )
    return backbone


def measured(
    name: str = DEFAULT_MODEL,
    *,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    max_context: int | None = None,
    again: bool = False,
) -> tuple[Backbone, GateReport]:
    """A backbone and its gate report, passed or not; `again` ignores a kept report.

    Raises:
        UnsupportedModelError: the model has no rotation that could be measured at all.
    """
    return _measured(open_weights(name, device=device, dtype=dtype), max_context, again)


def _measured(
    weights: Weights, max_context: int | None, again: bool
) -> tuple[Backbone, GateReport]:
    model = weights.model
    end_token_ids = _end_tokens(model, weights.tokenizer)
    text_tokenizer = _text_tokenizer(weights.tokenizer, end_token_ids)
    forward = inspect.signature(model.forward).parameters
    cache_argument = "cache" if "cache" in forward else "past_key_values"
    probe = Probe(weights.name, model, cache_argument, _probe_ids(weights, text_tokenizer))
    if "position_ids" not in forward or cache_argument not in forward:
        raise probe.refusal("its forward pass takes no positions (ALiBi or recurrent)")
    digest = model_digest(model, text_tokenizer)
    context_length = _context_length(model, max_context, weights.name)
    kept = _KeptVerdict.at(digest, context_length, max_context is not None)
    found = None if again else kept.read(weights.name)
    rope, shape = found[:2] if found else (measure_rotation(probe), probe.block().shape)
    backbone = Backbone(
        name=weights.name,
        model=model,
        tokenizer=weights.tokenizer,
        text_tokenizer=text_tokenizer,
        shape=shape,
        rope=rope,
        context_length=context_length,
        fingerprint=fingerprint(digest, rope),
        end_token_ids=end_token_ids,
        cache_argument=cache_argument,
        keeps_logits="logits_to_keep" in forward,
    )
    if found:
        return backbone, found[2]
    report = check_backbone(backbone, beyond_context=max_context is None)
    kept.write(rope, shape, report)
    return backbone, report


def _text_tokenizer(tokenizer: Any, end_token_ids: frozenset[int]) -> Any:
    """A copy of the backend tokenizer that takes control tokens in a text for plain text.

    Some tokenizers (Gemma's) declare the marks of a turn as ordinary added tokens: whatever ends an
    answer or stands in the rendered chat template is a control token too.
    """
    from tokenizers import AddedToken, Tokenizer

    copy = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    copy.no_truncation()
    copy.no_padding()
    turns = _rendered_turns(tokenizer)
    undeclared = [
        AddedToken(added.content, special=True, normalized=False)
        for token, added in sorted(copy.get_added_tokens_decoder().items())
        if not added.special
        and added.content.strip()
        and (token in end_token_ids or added.content in turns)
    ]
    copy.add_special_tokens(undeclared)
    copy.encode_special_tokens = True
    return copy


def _probe_ids(weights: Weights, text_tokenizer: Any) -> tuple[int, ...]:
    """The probe text's tokens, once the tokenizer is known to speak the model's vocabulary."""
    known = int(weights.model.get_input_embeddings().weight.shape[0])
    largest = max(text_tokenizer.get_vocab(with_added_tokens=False).values(), default=0)
    ids = tuple(text_tokenizer.encode(probe_text(), add_special_tokens=False).ids)
    if largest >= known or not ids:
        raise InputError(
            f"its tokenizer has token {largest}, its embeddings end at {known - 1}"
            if ids
            else "its tokenizer makes no tokens of English text",
            where=weights.name,
            hint="use the tokenizer that belongs to the model",
        )
    return probe_ids(ids)


def _rendered_turns(tokenizer: Any) -> str:
    """A short conversation in the chat template's own marks; empty where there is no template."""
    turns = [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}] * 2
    try:
        rendered: str = tokenizer.apply_chat_template(
            turns[:3], tokenize=False, add_generation_prompt=True
        )
    except Exception:  # noqa: BLE001 - no template, or one that raises what it likes
        return ""
    return rendered


def _context_length(model: Any, max_context: int | None, name: str) -> int:
    """Declared length, cut to the window of sliding layers: within it they equal full attention."""
    config = model.config.get_text_config()
    declared = int(getattr(config, "max_position_embeddings", None) or 4096)
    from transformers import DynamicCache

    windows = [
        int(layer.sliding_window)
        for layer in DynamicCache(config=config).layers
        if getattr(layer, "is_sliding", False)
    ]
    longest = min([declared, *windows])
    if max_context is None:
        return longest
    if not _SHORTEST_CONTEXT <= max_context <= longest:
        raise InputError(
            f"a context of {max_context} tokens is not possible with {name}",
            hint=f"use {_SHORTEST_CONTEXT} to {longest}",
        )
    return max_context


def _end_tokens(model: Any, tokenizer: Any) -> frozenset[int]:
    generation = getattr(model, "generation_config", None)
    ends: set[int] = set()
    for source in (generation, model.config, tokenizer):
        value = getattr(source, "eos_token_id", None)
        ends.update([value] if isinstance(value, int) else value or ())
    return frozenset(ends)


class _KeptVerdict:
    """A gate report, the rotation and the KV shape: sealed JSON under the model's digest."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @classmethod
    def at(cls, digest: str, context_length: int, promised: bool) -> _KeptVerdict:
        facts = f"{digest} {context_length} {promised} gate {_GATE_VERSION}"
        return cls(home() / "gate" / f"{hashlib.sha256(facts.encode()).hexdigest()}.json")

    def read(self, name: str) -> tuple[Rope, KVShape, GateReport] | None:
        try:
            seal, _, text = self._path.read_text().partition("\n")
            if seal != _seal(text):
                return None
            kept = json.loads(text)
            rope = Rope(torch.tensor(kept["inv_freq"], dtype=torch.float32), kept["layout"])
            shape = KVShape(**kept["shape"])
            rungs = tuple(Rung(**rung) for rung in kept["rungs"])
            report = GateReport(name, kept["fingerprint"], kept["context_length"], rungs)
        except (OSError, ValueError, KeyError, TypeError):
            return None  # unreadable is as good as never measured: measure again
        return rope, shape, report

    def write(self, rope: Rope, shape: KVShape, report: GateReport) -> None:
        text = json.dumps(
            {
                "layout": rope.layout,
                "inv_freq": rope.inv_freq.tolist(),
                "shape": asdict(shape),
                **asdict(report),
            }
        )
        part = self._path.with_name(f"{self._path.name}.{os.getpid()}-{uuid.uuid4().hex}.part")
        try:
            part.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(f"{_seal(text)}\n{text}")
            part.replace(self._path)
        except OSError:
            with suppress(OSError):  # no place to keep it: it is measured again next time
                part.unlink(missing_ok=True)


def _seal(text: str) -> str:
    """Checksum in front of a kept verdict: a damaged one must not let a model pass."""
    return hashlib.sha256(text.encode()).hexdigest()
