"""Methods: ways from retrieved evidence to the context an answer is computed on."""
