"""Repair: which tokens of a composed context are computed again."""
