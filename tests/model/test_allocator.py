"""What a pass frees stays with the process."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from coinkv.model.allocator import FREED_MEMORY_IS_KEPT

FAULTS = """
import resource, torch
from concurrent.futures import ThreadPoolExecutor
def faults(numbers=10_000_000):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.empty(numbers, dtype=torch.float32).fill_(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
"""
TOUCHED = f"{FAULTS}print(min(faults() for _ in range(12)))"
IN_A_THREAD = f"{FAULTS}print(min(ThreadPoolExecutor(1).map(faults, [20_000_000] * 12)))"
KEPT = "from coinkv.model.allocator import keep_freed_memory\nassert keep_freed_memory()\n"


def faults(code, **variables):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")}
    return int(
        subprocess.run(
            [sys.executable, "-c", code],
            env={**environment, **variables},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
    )


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's allocator is meant")
def test_a_large_tensor_takes_the_pages_of_the_one_before_it():
    assert faults(TOUCHED) > 1000
    assert faults(KEPT + TOUCHED) < 10
    assert faults(KEPT + IN_A_THREAD) < 10
    assert faults(TOUCHED, **FREED_MEMORY_IS_KEPT) < 10
