"""KVBoost against recomputation, prefix reuse and peers, each in a process of its own."""
