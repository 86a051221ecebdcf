"""The routes: what clients send and get."""
