"""CPU threads: small computations run on one, so that they never wait for a busy core."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread(wanted: bool = True) -> Iterator[None]:
    """Compute on one thread inside (of the calling thread only), if `wanted`.

    For work of a few milliseconds more threads gain little on a quiet machine, and cost fifty times
    as much while another process keeps a core busy (measured in docs/decisions.md).
    """
    before = torch.get_num_threads()
    if not wanted or before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
