"""The server: an OpenAI-compatible API, a documents API and a page, over one scheduler."""
