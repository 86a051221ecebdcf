"""The retriever: from a question to the nuggets or chunks of an index, as LangChain's documents."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Literal

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from pydantic import Field, InstanceOf, PrivateAttr

from coinkv.rag.ask import CoinRAG
from coinkv.rag.evidence import evidence_of
from coinkv.rag.index import Index
from coinkv.retrieval.two_stage import retrieve


class CoinKVRetriever(BaseRetriever):
    """The nuggets or chunks of an index that are nearest to a question, best first.

    Chunks are retrieved first, then nuggets among them (paper arXiv 2608.07458, section 2.3). The
    metadata of a document are the fields of `coinkv.Evidence` but for its text: document, title,
    chunk, start, end, score, chunk_start, chunk_end.

    Args:
        index: an opened index.
        unit: what a document is: a `nugget`, or a whole `chunk`.
        k_chunks: chunks retrieved; None takes 5, or all there are.
        k_nuggets: nuggets retrieved among those chunks; None takes 10, or all there are.

    Raises:
        InputError: k below 1 or above what the index holds; when asked, a question that is empty or
            no Unicode text.
    """

    index: InstanceOf[Index] = Field(repr=False)
    unit: Literal["nugget", "chunk"] = "nugget"
    k_chunks: int | None = None
    k_nuggets: int | None = None
    _asker: CoinRAG = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        """Refuse numbers that the index cannot give."""
        self._asker = CoinRAG(self.index, k_chunks=self.k_chunks, k_nuggets=self.k_nuggets)

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        index, asker = self.index, self._asker
        index.bench.prompt.suffix_ids(query)  # raises for what CoinRAG would not answer
        found = retrieve(
            index.vectors,
            index.embedder.embed([query])[0],
            k_chunks=asker.k_chunks,
            k_nuggets=asker.k_nuggets,
        )
        pieces = map(asdict, evidence_of(index.catalogue, found, self.unit))
        return [Document(page_content=piece.pop("text"), metadata=piece) for piece in pieces]
