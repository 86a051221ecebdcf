"""A quantisation grid: numbers of a group as small integers, a step and an offset in codes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

_LOWEST_EXPONENT = -110
"""Of a top: below it, the smallest steps would be subnormal in float32."""


@dataclass(frozen=True, eq=False)
class Groups:
    """Groups of numbers on a grid; one group has one step and one offset.

    Attributes:
        numbers: uint8, the shape of what was quantised.
        steps: uint8 codes of the steps, `numbers`' shape with 1 along the group.
        offsets: uint8 codes of the offsets, the shape of `steps`.
        tops: int8 exponents, `steps`' shape with 1 along the groups that share a top.
    """

    numbers: torch.Tensor
    steps: torch.Tensor
    offsets: torch.Tensor
    tops: torch.Tensor


@dataclass(frozen=True)
class Grid:
    """What the numbers of a group can be: `step * (q + offset)` with q in 0..`largest`.

    Steps are `2 ** (top - code / steps_per_octave)` with an integer `top`, so a group has the same
    step whatever `top` its neighbours ask for. Offsets are `first_offset + code * offset_step` in
    units of the step: a group far from zero keeps a step that fits its range (KIVI, arXiv
    2402.02750, keeps a 16-bit step and minimum instead).

    With R = max - min and M = the largest magnitude of a group, the group needs a step of
    `need = max(R / (largest - offset_step), M / reach)`. It gets the next one up, at most
    `2 ** (1 / steps_per_octave)` times as large, and never less than
    `2 ** (1 - (step_codes - 1) / steps_per_octave)` times the largest need under the same top, nor
    than 2**-126. A number is wrong by half a step at most, besides float32 rounding.

    Attributes:
        largest: of the integers.
        first_offset: the lowest offset.
        offset_step: from one offset to the next; it and `first_offset` are multiples of 1/8, so
            that `q + offset` is exact in float32 and equal on every machine.
        offset_codes: how many offsets there are.
        steps_per_octave: steps from one to twice as large a one.
        step_codes: how many steps there are under a top.
    """

    largest: int
    first_offset: float
    offset_step: float
    offset_codes: int
    steps_per_octave: int
    step_codes: int

    @property
    def reach(self) -> float:
        """The magnitude, in steps, that some offset covers on both sides of zero."""
        last = self.first_offset + (self.offset_codes - 1) * self.offset_step
        return min(-self.first_offset, last + self.largest)

    def need(self, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
        """The smallest step that surely covers groups from `low` to `high`."""
        usable = self.largest - self.offset_step
        magnitude = torch.maximum(low.abs(), high.abs())
        # divided before they are subtracted: the range of huge numbers overflows
        return torch.maximum(high / usable - low / usable, magnitude / self.reach)

    def quantise(self, numbers: torch.Tensor, *, along: int, under: int) -> Groups | None:
        """Groups of numbers on this grid; None when one is NaN or infinite.

        Args:
            numbers: float32.
            along: the axis along which the numbers of a group lie.
            under: the axis along which groups share a top.
        """
        low, high = numbers.amin(along, keepdim=True), numbers.amax(along, keepdim=True)
        if not (torch.isfinite(low).all() and torch.isfinite(high).all()):
            return None
        need = self.need(low, high)
        tops = torch.frexp(need.amax(under, keepdim=True)).exponent.clamp(min=_LOWEST_EXPONENT)
        tops = tops.to(torch.int8)
        # the smallest step that is not below the need
        places = torch.bucketize(need / _powers(tops), self._steps.flip(0))
        steps = (self.step_codes - 1 - places).to(torch.uint8)
        step = self._step(steps, tops)
        offsets = ((low / step - self.first_offset) / self.offset_step).floor_()
        offsets = offsets.clamp_(0, self.offset_codes - 1).to(torch.uint8)
        scaled = (numbers / step).sub_(self._offset(offsets)).round_().clamp_(0, self.largest)
        return Groups(scaled.to(torch.uint8), steps, offsets, tops)

    def restore(self, groups: Groups, out: torch.Tensor) -> torch.Tensor:
        """The numbers of groups, written into `out` (float32, their shape) and returned."""
        out.copy_(groups.numbers).add_(self._offset(groups.offsets))
        return out.mul_(self._step(groups.steps, groups.tops))

    @cached_property
    def _steps(self) -> torch.Tensor:
        """Steps by code, under a top of 0."""
        codes = range(self.step_codes)
        return torch.tensor([2.0 ** (-code / self.steps_per_octave) for code in codes])

    def _step(self, codes: torch.Tensor, tops: torch.Tensor) -> torch.Tensor:
        return self._steps[codes.int()] * _powers(tops)

    def _offset(self, codes: torch.Tensor) -> torch.Tensor:
        return codes.float().mul_(self.offset_step).add_(self.first_offset)


_POWERS = torch.tensor([2.0**exponent for exponent in range(-126, 128)])


def _powers(exponents: torch.Tensor) -> torch.Tensor:
    """Two to the given exponents, exact: a computed power may differ in the last bit."""
    return _POWERS[exponents.int() + 126]


def packed(numbers: torch.Tensor) -> torch.Tensor:
    """Numbers 0..15 two to a byte, along the last axis.

    Byte i holds number i in its low and number `i + half` in its high four bits, `half` being the
    half of their count, rounded up; where the count is odd, the last high four bits are 0.

    Args:
        numbers: uint8 `[..., count]`.

    Returns:
        uint8 `[..., half]`.
    """
    half = -(-numbers.shape[-1] // 2)
    low = numbers[..., :half].clone()
    low[..., : numbers.shape[-1] - half] |= numbers[..., half:] << 4
    return low


def unpacked(pairs: torch.Tensor, count: int) -> torch.Tensor:
    """The `count` numbers whose `packed` is `pairs`."""
    return torch.cat((pairs & 15, pairs >> 4), dim=-1)[..., :count]
