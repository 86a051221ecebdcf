"""Dense retrieval: embedders, vectors on disk, two stages."""
