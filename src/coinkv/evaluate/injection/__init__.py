"""Injected instructions: how often answers obey what a document says."""
