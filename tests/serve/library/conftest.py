"""Libraries whose jobs are done in this process."""

from in_process_library import libraries  # noqa: F401
