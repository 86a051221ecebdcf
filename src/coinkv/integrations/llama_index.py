"""LlamaIndex: CoinRAG as its query engine, in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from dataclasses import asdict
from typing import Any

from coinkv.errors import InputError
from coinkv.rag.answer import Evidence
from coinkv.rag.ask import AnswerStream, CoinRAG

try:
    from llama_index.core.base.base_query_engine import BaseQueryEngine
    from llama_index.core.base.response import schema
    from llama_index.core.callbacks import CallbackManager
    from llama_index.core.prompts.mixin import PromptMixinType
    from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
except ModuleNotFoundError as error:
    if not (error.name or "").startswith("llama_index"):
        raise
    raise InputError(
        "the adapter for LlamaIndex needs llama-index-core",
        hint="run: pip install 'coinkv[llama-index]'",
    ) from error


class CoinKVQueryEngine(BaseQueryEngine):
    """Questions over an index, answered by `coinkv.CoinRAG`; no model of LlamaIndex's takes part.

    `source_nodes` are what stood in the context, best first, with the fields of `coinkv.Evidence`
    as metadata. The response's `metadata` are the facts of `coinkv.Answer`, times in milliseconds;
    of a streaming response `ttft_ms` and `stages_ms` at once, and all of them at its end.

    Args:
        asker: over an opened index; its sampling says how answers are decoded.
        streaming: whether responses are streaming ones.
        callback_manager: LlamaIndex's, for traces.

    Raises:
        InputError: when asked: the question is empty, or does not fit into the context window.
    """

    def __init__(
        self,
        asker: CoinRAG,
        *,
        streaming: bool = False,
        callback_manager: CallbackManager | None = None,
    ) -> None:
        super().__init__(callback_manager)
        self._asker, self._streaming = asker, streaming

    def _get_prompt_modules(self) -> PromptMixinType:
        return {}

    def _query(self, query_bundle: QueryBundle) -> schema.RESPONSE_TYPE:
        response = self._begun(query_bundle.query_str)
        return response if self._streaming else response.get_response()

    async def _aquery(self, query_bundle: QueryBundle) -> schema.RESPONSE_TYPE:
        response = await asyncio.to_thread(self._query, query_bundle)
        if not isinstance(response, schema.StreamingResponse):
            return response
        pieces = _awaited(response.response_gen)
        return schema.AsyncStreamingResponse(pieces, response.source_nodes, response.metadata)

    def _begun(self, question: str) -> schema.StreamingResponse:
        asker = self._asker
        first = asker.first_token(question, answer_tokens=asker.sampling.max_tokens)
        metadata = {
            "ttft_ms": 1000 * first.clock.total_seconds,
            "stages_ms": {name: 1000 * s for name, s in first.clock.stages_seconds.items()},
        }
        pieces = _pieces(AnswerStream(asker, first, asker.sampling), metadata)
        return schema.StreamingResponse(
            pieces, [_node(each) for each in asker.evidence(first)], metadata
        )


def _node(evidence: Evidence) -> NodeWithScore:
    facts = asdict(evidence)
    return NodeWithScore(
        node=TextNode(text=facts.pop("text"), metadata=facts), score=evidence.score
    )


def _pieces(stream: AnswerStream, metadata: dict[str, Any]) -> Generator[str, None, None]:
    yield from stream
    facts = stream.answer.to_dict()
    metadata.update({name: facts[name] for name in facts.keys() - {"answer", "evidence"}})


async def _awaited(pieces: Generator[str, None, None]) -> AsyncGenerator[str, None]:
    """The pieces, each computed in a thread: the event loop goes on meanwhile."""
    while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
        yield piece
