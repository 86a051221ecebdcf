"""Store tiers: KV blocks kept as bytes under a key, read back by ranges of tokens."""
