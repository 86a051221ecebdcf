"""Memory: what a forward pass frees stays with the process, for the next pass."""

from __future__ import annotations

import ctypes

# of glibc's malloc.h
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -2, -3, -8
_LARGEST_TENSORS = (1 << 30, 32 << 20)  # older versions take no more than the second
_TOP_PAD_BYTES = 64 << 20
FREED_MEMORY_IS_KEPT = {
    "MALLOC_MMAP_THRESHOLD_": str(_LARGEST_TENSORS[0]),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_TOP_PAD_": str(_TOP_PAD_BYTES),
    "MALLOC_ARENA_MAX": "1",
}
"""The same for a process that is started: environment variables that glibc reads."""


def keep_freed_memory() -> bool:
    """Have the allocator keep large pieces that are freed; whether it can be told so.

    By default glibc gives every large tensor back to the system and takes fresh pages for the next,
    whose first touch costs up to a tenth of a long prefill (measured in docs/decisions.md). The
    process keeps the most memory it ever used. All threads share one pool: one of a thread's own
    gives memory back whatever it is told, and keeps what another thread could use. For programs of
    their own, such as commands and servers; a library does not choose this for the program that
    uses it.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library
        return False
    if not any(mallopt(_MMAP_THRESHOLD, size) for size in _LARGEST_TENSORS):
        return False
    mallopt(_ARENA_MAX, 1)
    return bool(mallopt(_TRIM_THRESHOLD, -1) and mallopt(_TOP_PAD, _TOP_PAD_BYTES))
