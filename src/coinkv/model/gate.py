"""The gate: measures on the model itself that its KV moves exactly, and refuses otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from coinkv.errors import CoinKVError, UnsupportedModelError
from coinkv.kv.block import KVBlock
from coinkv.model.backbone import Backbone
from coinkv.model.fill import LiveCache, fill
from coinkv.model.rotation import Probe, relative_difference

_TEXT = (
    "The river had risen in the night, and by 6 o'clock the lower fields were under water. "
    "Marta counted 14 sheep on the hill; two were missing. She took the lamp, called the dog, and "
    "went down to the bridge to look for them before the rain began again in earnest."
)
PROBE_TOKENS = 48
# Largest difference, relative to the largest reference value, that rounding explains. 16-bit models
# round cos and sin themselves; far from position 0 the model's own float32 angles are rounded.
_TOLERANCES = {
    torch.float32: {"near": 1e-3, "far": 2e-2},
    torch.float16: {"near": 2e-2, "far": 5e-2},
    torch.bfloat16: {"near": 1e-1, "far": 1.5e-1},
}


@dataclass(frozen=True)
class Rung:
    """One measurement: what was compared, how far apart it was, and how far is allowed."""

    name: str
    largest_difference: float
    relative_difference: float
    tolerance: float

    @property
    def passed(self) -> bool:
        """Within tolerance (a difference that is not a number is not)."""
        return self.relative_difference <= self.tolerance


@dataclass(frozen=True)
class GateReport:
    """What was measured on a model, and the verdict."""

    model: str
    fingerprint: str
    context_length: int
    rungs: tuple[Rung, ...]

    @property
    def passed(self) -> bool:
        """Every rung was within its tolerance."""
        return all(rung.passed for rung in self.rungs)

    @property
    def reason(self) -> str:
        """Why the model is refused (the first rung that failed); empty when it is not."""
        failed = next((rung for rung in self.rungs if not rung.passed), None)
        if failed is None:
            return ""
        return (
            f"{failed.name}: differs by {failed.relative_difference:.2g} of the largest value "
            f"(allowed {failed.tolerance:g})"
        )

    @property
    def hint(self) -> str:
        """What to do about a refusal."""
        if all(rung.passed for rung in self.rungs if "context" not in rung.name):
            return (
                "its frequencies depend on length: promise a shorter context "
                "(max_context, --max-context)"
            )
        return "use a decoder with standard rotary positions (RoPE) in every layer"


def probe_ids(text_tokens: tuple[int, ...]) -> tuple[int, ...]:
    """The tokens a model is probed with: `PROBE_TOKENS`, repeated where the text is shorter."""
    repeats = -(-PROBE_TOKENS // max(1, len(text_tokens)))
    return (text_tokens * repeats)[:PROBE_TOKENS]


def probe_text() -> str:
    """The built-in text the gate reads."""
    return _TEXT


def check_backbone(backbone: Backbone, *, beyond_context: bool = True) -> GateReport:
    """Measure rungs 1, 2, 3 and 5 of the exactness ladder on a short text.

    Args:
        backbone: the model.
        beyond_context: also move past the declared context length, where position-dependent
            frequencies (dynamic NTK) show; left out when a shorter context was promised.

    Returns:
        the report; nothing is raised for a model that fails a rung.

    Raises:
        UnsupportedModelError: the model cannot read within its own context, or not with a KV cache
            that was put in place.
    """
    ids = probe_ids(backbone.tokenize(_TEXT).ids)
    probe = Probe(backbone.name, backbone.model, backbone.cache_argument, ids)
    try:
        rungs = tuple(_rungs(backbone, probe, beyond_context))
    except (CoinKVError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise probe.refusal(f"its forward pass does not take KV put in place ({reason})") from error
    return GateReport(backbone.name, backbone.fingerprint, backbone.context_length, rungs)


def _rungs(backbone: Backbone, probe: Probe, beyond_context: bool) -> Iterator[Rung]:
    ids, own = probe.token_ids, probe.block(0)
    near, far = (_TOLERANCES[backbone.dtype][key] for key in ("near", "far"))
    name = "rung 1: filled block against the model's own cache"
    yield _compare(name, _filled(backbone, ids), own, near)
    yield from _moves(backbone, probe, own, near, far, beyond_context)
    name = "rung 3: chunk behind its prefix against full prefill"
    yield _logits(name, backbone, ids, near, _behind_prefix)
    name = "rung 5: everything repaired against full prefill"
    yield _logits(name, backbone, ids, near, _repaired)


def _moves(
    backbone: Backbone,
    probe: Probe,
    own: KVBlock,
    near: float,
    far: float,
    beyond_context: bool,
) -> list[Rung]:
    """Rung 2: keys moved by several distances against keys encoded there."""
    end = max(1, backbone.context_length - len(own))
    distances = [(min(61, end), "near", near), (end, "at the end of the context", far)]
    if beyond_context:
        distances.append((2 * backbone.context_length, "past the declared context", far))
    rungs = []
    for distance, where, tolerance in distances:
        try:
            there = probe.block(distance)
        except UnsupportedModelError:
            if distance <= end:
                raise
            continue  # a table of positions ends at the declared context: nothing is reused there
        moved = own.moved_to(there.positions, backbone.rope)
        title = f"rung 2: keys moved by {distance} positions ({where})"
        rungs.append(_compare(f"{title}, layer 0", moved[:], there, tolerance, layers=1))
        rungs.append(_compare(f"{title}, all layers", moved, there, tolerance))
    return rungs


def _compare(
    name: str, block: KVBlock, reference: KVBlock, tolerance: float, layers: int | None = None
) -> Rung:
    pairs = [
        (block.keys[:layers], reference.keys[:layers]),
        (block.values[:layers], reference.values[:layers]),
    ]
    largest = max(float((a.double() - b.double()).abs().max()) for a, b in pairs)
    relative = max(
        relative_difference(a[layer], b[layer]) for a, b in pairs for layer in range(len(b))
    )
    return Rung(name, largest, relative, tolerance)


def _filled(backbone: Backbone, ids: tuple[int, ...]) -> KVBlock:
    cache = LiveCache.for_backbone(backbone, len(ids))
    fill(backbone, cache, ids, torch.arange(len(ids)), logits="none")
    return cache.block().to(backbone.dtype, "cpu")


def _logits(
    name: str,
    backbone: Backbone,
    ids: tuple[int, ...],
    tolerance: float,
    composed: Callable[[Backbone, tuple[int, ...], int, int], torch.Tensor],
) -> Rung:
    """Logits of the last third of the tokens behind a composed context against full prefill."""
    a, b = len(ids) // 3, 2 * len(ids) // 3
    with torch.no_grad():
        output = backbone.model(torch.tensor([ids], device=backbone.device))
    reference = output.logits[0, b:].float()
    measured = composed(backbone, ids, a, b)
    largest = float((measured - reference).abs().max())
    return Rung(name, largest, relative_difference(measured, reference), tolerance)


def _behind_prefix(backbone: Backbone, ids: tuple[int, ...], a: int, b: int) -> torch.Tensor:
    encoded = LiveCache.for_backbone(backbone, b)
    fill(backbone, encoded, ids[:a], torch.arange(a), logits="none")
    fill(backbone, encoded, ids[a:b], torch.arange(a, b), logits="none")
    cache = LiveCache.for_backbone(backbone, len(ids))
    cache.append(encoded.block(0, a))
    cache.append(encoded.block(a, b).moved_to(torch.arange(a, b), backbone.rope))
    return _suffix_logits(backbone, cache, ids, b)


def _repaired(backbone: Backbone, ids: tuple[int, ...], a: int, b: int) -> torch.Tensor:
    """Two blocks encoded alone, the second moved behind the first, then every token recomputed."""
    cache = LiveCache.for_backbone(backbone, len(ids))
    for start, end in ((0, a), (a, b)):
        alone = _filled(backbone, ids[start:end])
        cache.append(alone.moved_to(torch.arange(start, end), backbone.rope))
    fill(backbone, cache, ids[:b], torch.arange(b), logits="none")
    return _suffix_logits(backbone, cache, ids, b)


def _suffix_logits(
    backbone: Backbone, cache: LiveCache, ids: tuple[int, ...], start: int
) -> torch.Tensor:
    logits = fill(backbone, cache, ids[start:], torch.arange(start, len(ids)), logits="all")
    if logits is None:
        raise TypeError("fill was asked for logits")
    return logits
