"""What a reader of a stream feels of others: their long prompts, and documents being indexed.

    coinkv serve --index INDEX --port 8100                       # in another terminal
    python benchmarks/serve_beside.py --url http://127.0.0.1:8100 --model coinrag/INDEX \
        --documents hotpotqa.jsonl --to benchmarks/results/serve/beside.json

The same questions are streamed alone, beside prompts of thousands of tokens (full prefill of five
passages, by the method `standard_rag`), and beside an upload that is being indexed; in turns, so
that a busy machine troubles all three alike.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import time
from itertools import pairwise
from pathlib import Path

import httpx

from serve_load import quantile, questions_of, until_ready


async def stream(http: httpx.AsyncClient, model: str, question: str, **extra) -> dict[str, float]:
    """One answer: its TTFT, the longest gap between two of its tokens, and its time a token."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "stream": True,
        "first_line": False,
        "max_tokens": 48,
        **extra,
    }
    started, arrivals = time.perf_counter(), []
    async with http.stream("POST", "/v1/chat/completions", json=body) as reply:
        async for line in reply.aiter_lines():
            if line.startswith("data: {"):
                chunk = json.loads(line[6:])
                if any(choice["delta"].get("content") for choice in chunk.get("choices", ())):
                    arrivals.append(time.perf_counter())
    gaps = [later - earlier for earlier, later in pairwise(arrivals)]
    return {
        "ttft_ms": 1000 * (arrivals[0] - started),
        "longest_gap_ms": 1000 * max(gaps, default=0.0),
        "ms_a_token": 1000 * statistics.fmean(gaps) if gaps else 0.0,
        "total_ms": 1000 * (arrivals[-1] - started),
    }


@contextlib.asynccontextmanager
async def long_prompts(http, args, questions):
    """Another client that asks by full prefill, one after the other."""

    async def ask() -> None:
        for question in questions * 1000:
            await stream(http, args.model, question, method="standard_rag", max_tokens=1)

    task = asyncio.create_task(ask())
    await asyncio.sleep(0.3)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@contextlib.asynccontextmanager
async def indexing(http, args, questions):
    """An upload of many passages, whose indexing outlasts the block."""
    rows = [json.loads(line) for line in args.documents.read_text().splitlines()]
    passages = [passage for row in rows for passage in row["passages"]][: args.passages]
    texts = [
        {"id": f"{number}", "title": passage["title"], "text": passage["text"]}
        for number, passage in enumerate(passages)
    ]
    reply = await http.post("/v1/indexes/beside/documents", json={"documents": texts})
    if reply.status_code != 202:
        raise SystemExit(f"the upload was refused: {reply.text}")
    job = reply.json()
    while (now := (await http.get(f"/v1/jobs/{job['id']}")).json())["stage"] != "encoding chunks":
        if now["state"] in ("done", "failed"):
            raise SystemExit(f"the job is over before the questions: {now}")
        await asyncio.sleep(0.2)
    try:
        yield
        after = (await http.get(f"/v1/jobs/{job['id']}")).json()
        if after["state"] != "running":
            raise SystemExit("the job ended before the questions: give more passages")
        print(f"indexed beside answers: {now['done']} to {after['done']} of {after['total']}")
    finally:
        await http.delete("/v1/indexes/beside")


async def main() -> None:
    """Ask in all three situations, several times."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--documents", type=Path, required=True)
    parser.add_argument("--passages", type=int, default=600)
    parser.add_argument(
        "--questions", type=Path, default=Path(__file__).parent / "follow_ups.jsonl"
    )
    parser.add_argument("--asked", type=int, default=8, help="questions in each situation a round")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--to", type=Path)
    args = parser.parse_args()
    questions = questions_of(args.questions)[: args.asked]
    seen: dict[str, list[dict[str, float]]] = {"alone": [], "long_prompts": [], "indexing": []}
    async with httpx.AsyncClient(base_url=args.url, timeout=600) as http:
        await until_ready(http)
        for question in questions:  # what was read once is in the page cache
            await stream(http, args.model, question)
        for _ in range(args.rounds):
            for situation in seen:
                beside = {"long_prompts": long_prompts, "indexing": indexing}.get(situation)
                around = beside(http, args, questions) if beside else contextlib.nullcontext()
                async with around:
                    for question in questions:
                        seen[situation].append(await stream(http, args.model, question))
    result = {
        situation: {
            "answers": len(rows),
            **{
                f"{key}_median": round(statistics.median(r[key] for r in rows), 1)
                for key in rows[0]
            },
            "ttft_ms_p90": round(quantile([row["ttft_ms"] for row in rows], 0.9), 1),
            "longest_gap_ms_max": round(max(row["longest_gap_ms"] for row in rows), 1),
        }
        for situation, rows in seen.items()
    }
    alone = result["alone"]
    for row in result.values():
        for key in ("ttft_ms", "ms_a_token", "total_ms"):
            row[f"{key}_over_alone"] = round(row[f"{key}_median"] / alone[f"{key}_median"], 3)
    print(json.dumps(result, indent=1))
    if args.to:
        args.to.parent.mkdir(parents=True, exist_ok=True)
        args.to.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
