"""The algebra of KV blocks: slice, move, join. Pure tensors, no model."""
