"""A Hugging Face causal language model behind the algebra of KV blocks."""
