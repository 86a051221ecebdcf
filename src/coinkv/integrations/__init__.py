"""Other frameworks: coinkv as their retriever, chat model or query engine."""
