"""Text on the way in: documents, their chunks, and the nuggets found in them."""
