"""Extractors propose candidate nuggets of a text; alignment decides which of them stand."""
