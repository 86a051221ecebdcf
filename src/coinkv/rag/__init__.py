"""CoinRAG over an index: the way in (build) and the way out (ask)."""
