"""LangChain: an index as its retriever, KVBoost as its chat model, both in this process."""

from __future__ import annotations

from coinkv.errors import InputError

try:
    from coinkv.integrations.langchain.chat_model import CoinKVChatModel
    from coinkv.integrations.langchain.retriever import CoinKVRetriever
except ModuleNotFoundError as error:
    if (error.name or "").split(".")[0] != "langchain_core":
        raise
    raise InputError(
        "the adapters for LangChain need langchain-core",
        hint="run: pip install 'coinkv[langchain]'",
    ) from error

__all__ = ["CoinKVChatModel", "CoinKVRetriever"]
