"""The command line: every command is one call of the Python API."""
