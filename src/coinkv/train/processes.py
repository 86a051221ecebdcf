"""Processes: one step's micro-batches shared among them, their gradients added up (accelerate)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch

Item = TypeVar("Item")


class Processes:
    """What `accelerate launch` or `torchrun` started, or one process alone.

    A step's loss is divided by the answer tokens of all its rows, so one process and several learn
    the same, up to the order in which floats are added.

    Args:
        device: where to compute; None takes what accelerate gives each process.
    """

    def __init__(self, device: str | torch.device | None = None) -> None:
        from accelerate import Accelerator

        self._device = None if device is None else torch.device(device)
        # accelerate joins processes on a machine without a GPU only where it is told to use none
        wanted = "cpu" if device is None and not torch.accelerator.is_available() else device
        cpu = wanted is not None and torch.device(wanted).type == "cpu"
        self._accelerator: Any = Accelerator(cpu=cpu)

    @property
    def device(self) -> torch.device:
        """Where this process computes."""
        if self._device is not None and self._accelerator.num_processes == 1:
            return self._device
        device: torch.device = self._accelerator.device
        return device

    @property
    def main(self) -> bool:
        """This process writes files and talks."""
        return bool(self._accelerator.is_main_process)

    def share(self, items: Sequence[Item]) -> Iterator[tuple[int, Item]]:
        """This process's part of items, each with its number among all."""
        accelerator = self._accelerator
        for number in range(accelerator.process_index, len(items), accelerator.num_processes):
            yield number, items[number]

    def autocast(self, *, half: bool) -> AbstractContextManager[Any]:
        """Around a pass.

        Args:
            half: on a GPU, compute in bfloat16 with weights that are kept in float32.
        """
        cuda = half and self.device.type == "cuda"
        return torch.autocast("cuda", torch.bfloat16) if cuda else nullcontext()

    def add_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Make every process's gradients the sum of all; what had none here counts as zero."""
        held = list(parameters)
        for parameter in held:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        if self._accelerator.num_processes == 1:
            return
        joined = torch.cat([p.grad.reshape(-1) for p in held if p.grad is not None])
        total = self._accelerator.reduce(joined, reduction="sum")
        at = 0
        for parameter in held:
            size = parameter.numel()
            parameter.grad = total[at : at + size].reshape(parameter.shape).clone()
            at += size

    def gathered(self, item: Item) -> list[Item]:
        """What every process has, in their order, in each of them."""
        if self._accelerator.num_processes == 1:
            return [item]
        from accelerate.utils import gather_object

        found: list[Item] = gather_object([item])
        return found

    def wait(self) -> None:
        """Until every process is here."""
        self._accelerator.wait_for_everyone()
