"""The command line: every command is one call of the Python API."""

import os

# OpenMP threads that spin for long at a barrier make two threads up to fifty times slower than one
# beside a busy process; a short spin costs nothing (measured in docs/decisions.md). Read by the
# OpenMP library when torch is first imported, so it must be set before.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
