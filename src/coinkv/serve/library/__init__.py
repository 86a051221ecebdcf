"""The library: indexes a server keeps, and the background process that brings them up to date."""
