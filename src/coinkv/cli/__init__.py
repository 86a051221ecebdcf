"""The command line: every command is one call of the Python API."""

import os
import sys

# OpenMP threads that spin for long at a barrier make two threads up to fifty times slower than one
# beside a busy process; a short spin costs nothing (measured in docs/decisions.md). Read by the
# OpenMP library when torch is first imported, so it must be set before.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
if sys.platform == "linux":
    # GNU's OpenMP spins ten times shorter still once a process has more teams of threads than
    # cores, as a server's workers are; this says not to. Others would take it to spin for ever.
    os.environ.setdefault("OMP_WAIT_POLICY", "active")
