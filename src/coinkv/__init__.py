"""coinkv: encode text once, keep its KV, answer from slices moved into place."""

__version__ = "0.1.0"
