"""Which rotation a model applies to its keys, found by measuring the model, never by its name."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

import torch

from coinkv.errors import UnsupportedModelError
from coinkv.kv.block import KVBlock
from coinkv.kv.rope import Layout, Rope


@dataclass(frozen=True)
class Probe:
    """A model that can be run on token ids at chosen positions, before its rotation is known."""

    name: str
    model: Any
    cache_argument: str
    token_ids: tuple[int, ...]

    def block(self, start: int = 0) -> KVBlock:
        """KV the model's own cache holds after reading the probe tokens at `start, start + 1, ...`.

        Raises:
            UnsupportedModelError: the model keeps no KV, or KV that is no KV block, or cannot read
                there.
        """
        positions = torch.arange(start, start + len(self.token_ids))
        device = self.model.device
        try:
            with torch.no_grad():
                output = self.model(
                    input_ids=torch.tensor([self.token_ids], device=device),
                    position_ids=positions[None].to(device),
                    use_cache=True,
                )
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            reason = " ".join(str(error).split())[:120] or type(error).__name__
            raise self.refusal(
                f"it cannot read {len(positions)} tokens at position {start} ({reason})"
            ) from error
        layers = getattr(output.get(self.cache_argument), "layers", None) or ()
        keys: list[Any] = [getattr(layer, "keys", None) for layer in layers]
        values: list[Any] = [getattr(layer, "values", None) for layer in layers]
        shapes = {None if t is None else tuple(t.shape) for t in (*keys, *values)}
        if not layers or None in shapes:
            raise self.refusal("not every layer keeps keys and values (recurrent or linear layers)")
        if len(shapes) > 1:
            raise self.refusal(
                "keys and values differ in shape between layers or from each other "
                f"({_listed(shapes)}), as with latent attention (MLA)"
            )
        if keys[0].ndim != 4 or keys[0].shape[2] != len(self.token_ids):
            raise self.refusal(f"its cache holds {_listed(shapes)}, not one key a token and head")
        return KVBlock(
            torch.stack([k[0] for k in keys]).cpu(),
            torch.stack([v[0] for v in values]).cpu(),
            positions,
        )

    def refusal(self, reason: str) -> UnsupportedModelError:
        """The error that says why this model's KV cannot be moved."""
        return UnsupportedModelError(
            f"KV of this model cannot be moved: {reason}",
            where=self.name,
            hint="use a decoder with standard rotary positions (RoPE) in every layer",
        )


def relative_difference(measured: torch.Tensor, reference: torch.Tensor) -> float:
    """Largest absolute difference over the largest absolute reference value (0 if both are 0).

    Infinite where either holds a value that is not a finite number, so that no comparison passes.
    """
    scale = float(reference.abs().max())
    largest = float((measured.double() - reference.double()).abs().max())
    ratio = largest / scale if scale > 0 else largest
    return ratio if math.isfinite(ratio) else math.inf


def measure_rotation(probe: Probe, offset: int = 61, tolerance: float = 0.1) -> Rope:
    """The rotation that takes keys encoded at position 0 on to those encoded at `offset` on.

    Every rotary frequency vector the model holds, and none at all, is tried for every layer in both
    layouts; the closest wins if it is within `tolerance`.

    Args:
        probe: the model and what it reads.
        offset: distance of the move tried, in positions.
        tolerance: largest relative difference (see `relative_difference`) that counts as equal. It
            lets bfloat16 pass (rounding: 0.06 measured) and no wrong rotation (0.4 and more).

    Raises:
        UnsupportedModelError: positions are not rotary, or follow no rotation the model names.
    """
    rope_parameters = getattr(probe.model.config.get_text_config(), "rope_parameters", None) or {}
    if "mrope_section" in rope_parameters:
        raise probe.refusal(
            "its positions have several axes (M-RoPE), a token's place is no number"
        )
    frequencies = _frequencies(probe.model)
    if not frequencies:
        raise probe.refusal("it holds no rotary frequencies (learned or ALiBi positions)")
    at_zero, moved = probe.block(0), probe.block(offset)
    best: tuple[float, Rope] | None = None
    for layout in get_args(Layout):
        rows, worst = [], 0.0
        for layer in range(at_zero.shape.layers):
            difference, row = min(
                ((_miss(at_zero, moved, layer, row, layout), row) for row in frequencies),
                key=lambda pair: pair[0],
            )
            rows.append(row)
            worst = max(worst, difference)
        if best is None or worst < best[0]:
            best = worst, Rope(_compact(rows), layout)
    worst, rope = best if best is not None else (float("inf"), None)
    if rope is None or not worst <= tolerance:
        raise probe.refusal(
            f"keys encoded {offset} positions later differ from rotated ones by {worst:.2g} of "
            f"their size in some layer (allowed {tolerance:g})"
        )
    if not rope.inv_freq.any():
        raise probe.refusal("its keys carry no position (ALiBi or none)")
    return rope


def _listed(shapes: set[tuple[int, ...] | None]) -> str:
    return " and ".join(str(list(shape)) for shape in sorted(shape for shape in shapes if shape))


def _frequencies(model: Any) -> list[torch.Tensor]:
    """Distinct rotary frequency vectors the model holds, then zeros (a layer without rotation)."""
    found: list[torch.Tensor] = []
    for name, buffer in model.named_buffers():
        leaf = name.rsplit(".", 1)[-1]
        if "inv_freq" in leaf and "original" not in leaf and buffer.ndim == 1:
            row = buffer.detach().float().cpu().clone()
            if not any(torch.equal(row, known) for known in found):
                found.append(row)
    pairs = {len(row) for row in found}
    return found + [torch.zeros(n) for n in sorted(pairs)]


def _miss(block: KVBlock, moved: KVBlock, layer: int, row: torch.Tensor, layout: Layout) -> float:
    if 2 * len(row) > block.shape.head_dim:
        return float("inf")
    keys = block.keys[layer : layer + 1]
    turned = Rope(row[None], layout).rotated(keys, block.positions, moved.positions)
    return relative_difference(turned, moved.keys[layer : layer + 1])


def _compact(rows: Sequence[torch.Tensor]) -> torch.Tensor:
    """`[layers, pairs]`, or `[1, pairs]` when every layer rotates alike; shorter rows get zeros."""
    pairs = max(len(row) for row in rows)
    padded = torch.stack([torch.nn.functional.pad(row, (0, pairs - len(row))) for row in rows])
    return padded[:1] if bool((padded == padded[0]).all()) else padded
