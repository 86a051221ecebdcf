"""What the scripted server says: two documents, one answer, and the forms the API has for them."""

from __future__ import annotations

from typing import Any

CHUNK = (
    "Edmund Ruffin was a planter in Virginia. He tried marl on exhausted soils. "
    "Benjamin Franklin sowed gypsum on a hillside to show what it does as a fertilizer. "
    "The grass grew greener where it lay. Liebig later explained minerals by chemistry."
)
OTHER = (
    "الجبس معدن شائع. 石膏は肥料として使われた。 Its use spread through Pennsylvania 🌾 by 1790."
)
DOCUMENTS = {
    "agricultural_science.md": ("Agricultural science", CHUNK),
    "notes/gypsum.txt": ("Gypsum · 石膏 · جبس", OTHER),
}
ANSWER = "It was 🌾 Benjamin Franklin who conducted experiments on the use of gypsum."
CITED = "Benjamin Franklin"


def entry(name: str, **changes: Any) -> dict[str, Any]:
    """An index as the API lists it."""
    return {
        "id": name,
        "object": "index",
        "model": f"coinrag/{name}",
        "state": "ready",
        "writable": True,
        "removable": True,
        "follows": False,
        "documents": 2,
        "chunks": 2,
        "nuggets": 7,
        "tokens": 96,
        "kv_bytes": 2_211_840,
        "generation": 1,
        "job": None,
        "error": None,
        **changes,
    }


def job(**changes: Any) -> dict[str, Any]:
    """An indexing job as the API tells of it."""
    return {
        "id": "job-1",
        "object": "indexing.job",
        "index": "demo",
        "kind": "add",
        "state": "running",
        "stage": "encoding chunks",
        "done": 3,
        "total": 12,
        "documents": [],
        "error": None,
        "created": 0,
        "finished": None,
        "skipped": [],
        **changes,
    }


def annotation(document: str, quote: str, supports: str, answer: str) -> dict[str, Any]:
    """Evidence as the API annotates it: offsets are in characters."""
    title, text = DOCUMENTS[document]
    at = answer.find(supports) if supports else -1
    return {
        "type": "url_citation",
        "url_citation": {
            "url": f"/v1/indexes/demo/documents/{document}#char=0,1",
            "title": title,
            "start_index": max(at, 0),
            "end_index": at + len(supports) if at >= 0 else 0,
        },
        "document": document,
        "title": title,
        "chunk": 0,
        "start": text.index(quote),
        "end": text.index(quote) + len(quote),
        "quote": quote,
        "score": 0.71,
        "chunk_start": 0,
        "chunk_end": len(text),
    }


def annotations(answer: str, *, method: str, ended: bool) -> list[dict[str, Any]]:
    """The evidence of an answer; what it supports is known when the answer has ended."""
    supports = CITED if ended else ""
    if method == "standard_rag":
        return [annotation(name, text, supports, answer) for name, (_, text) in DOCUMENTS.items()]
    nugget = "Benjamin Franklin sowed gypsum on a hillside to show what it does as a fertilizer."
    return [
        annotation("agricultural_science.md", nugget, supports, answer),
        annotation("notes/gypsum.txt", "石膏は肥料として使われた。", supports, answer),
        annotation("agricultural_science.md", "The grass grew greener where it lay.", "", answer),
    ]


def facts(body: dict[str, Any]) -> dict[str, Any]:
    """How an answer came to be."""
    question = body["messages"][-1]["content"]
    if not body["model"].startswith("coinrag/"):
        reuse = {"exact": 25, "moved": 1342, "repaired": 32, "computed": 80}
        stages = {"tokenize": 1.2, "plan": 3.1, "read": 9.9, "compose": 12.0, "prefill": 211.0}
        return {"ttft_ms": 237.6, "queue_ms": 0.4, "stages_ms": stages, "reuse": reuse}
    slow = body.get("method") == "standard_rag"
    stages = {"prepare": 0.3, "embed": 21.4, "retrieve": 0.9, "read": 4.2, "compose": 6.1}
    stages |= {"compose": 0.4, "read": 0.0, "prefill": 7_934.0} if slow else {"prefill": 158.0}
    told = {
        "ttft_ms": 0.4 + sum(stages.values()),
        "queue_ms": 0.4,
        "stages_ms": stages,
        "question": question if len(body["messages"]) == 1 else f"{question} (gypsum)",
        "method": body.get("method", "coinrag"),
        "adapter": {"name": "made-for-nuggets", "digest": "e3288b25"},
        "len_tokens": 2590 if slow else 312,
        "suffix_tokens": 24,
    }
    return told
