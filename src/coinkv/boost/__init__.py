"""KVBoost: reuse the KV of any prompt's text wherever it stands again (arXiv 2608.21362)."""
