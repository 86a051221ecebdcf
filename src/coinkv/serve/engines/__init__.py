"""What a model's name stands for: KVBoost on any prompt, or questions to an index."""
