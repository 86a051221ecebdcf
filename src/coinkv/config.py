"""Names of the defaults and of the folders coinkv keeps on this machine."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

DEFAULT_MODEL = "smollm2-135m-instruct"
DEFAULT_EMBEDDER = "all-minilm-l6-v2"
CHUNK_TOKENS = 512
"""Most tokens of a chunk, title header included (paper arXiv 2608.07458, section 4.1)."""
BOOST_CHUNK_TOKENS = 32
"""Tokens of a chunk of any prompt, about (measured in docs/decisions.md)."""
DEFAULT_K_CHUNKS = 5
DEFAULT_K_NUGGETS = 10


def home() -> Path:
    """Folder of converted models and gate verdicts: `$COINKV_HOME`, else the user cache folder."""
    chosen = os.environ.get("COINKV_HOME")
    return Path(chosen).expanduser() if chosen else Path(platformdirs.user_cache_dir("coinkv"))
