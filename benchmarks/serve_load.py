"""Load a running server: 1, 4, 16 and 64 clients, every answer compared with the one given alone.

    coinkv serve --index INDEX --port 8100                       # in another terminal
    python benchmarks/serve_load.py --url http://127.0.0.1:8100 --model coinrag/INDEX \
        --seconds 300 --to benchmarks/results/serve/load.json

Each client asks a question of the file, reads the stream to its end, and asks the next. First every
question is asked alone, one by one: those answers are what the loaded server must give, too.
With `--index` the same questions are asked of the library in this process, in turns with the
server at one client, for the time that serving adds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import random
import statistics
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import httpx

GAUGES = {
    "rss_bytes": "process_resident_memory_bytes",
    "open_files": "process_open_fds",
}


@dataclass
class Reply:
    """One answer as a client saw it."""

    question: str
    text: str = ""
    error: str = ""
    ttft_seconds: float = 0.0
    seconds: float = 0.0
    tokens: int = 0
    cached: int = 0
    server_ttft_ms: float = 0.0


@dataclass
class Phase:
    """What so many clients saw."""

    clients: int
    seconds: float
    replies: list[Reply] = field(default_factory=list)
    gauges: list[dict[str, float]] = field(default_factory=list)


async def ask(http: httpx.AsyncClient, model: str, question: str, extra: dict) -> Reply:
    """Stream one answer."""
    reply, started = Reply(question), time.perf_counter()
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "stream": True,
        "stream_options": {"include_usage": True},
        **extra,
    }
    try:
        async with http.stream("POST", "/v1/chat/completions", json=body) as stream:
            if stream.status_code != 200:
                await stream.aread()
                reply.error = f"HTTP {stream.status_code}"
                if stream.status_code == 429:
                    await asyncio.sleep(float(stream.headers.get("retry-after", "1")))
                return reply
            async for line in stream.aiter_lines():
                if line.startswith("data: {"):
                    take(reply, json.loads(line[6:]), started)
    except httpx.HTTPError as error:
        reply.error = type(error).__name__
    reply.seconds = time.perf_counter() - started
    if not reply.error and not reply.ttft_seconds:  # an answer without text
        reply.ttft_seconds = reply.seconds
    return reply


def take(reply: Reply, chunk: dict, started: float) -> None:
    """Add a chunk of a stream to its reply."""
    if "error" in chunk:
        reply.error = chunk["error"].get("code") or chunk["error"]["message"]
    if chunk.get("usage"):
        reply.tokens = chunk["usage"]["completion_tokens"]
        reply.cached = chunk["usage"]["prompt_tokens_details"]["cached_tokens"]
    if "coinkv" in chunk and "ttft_ms" in chunk["coinkv"]:
        reply.server_ttft_ms = chunk["coinkv"]["ttft_ms"]
    for choice in chunk.get("choices", ()):
        text = choice["delta"].get("content") or ""
        if text and not reply.ttft_seconds:
            reply.ttft_seconds = time.perf_counter() - started
        reply.text += text


async def until_ready(http: httpx.AsyncClient) -> None:
    """Wait for the server, then for its model."""
    while True:
        try:
            if (await http.get("/readyz")).status_code == 200:
                return
        except httpx.ConnectError:
            pass  # it does not listen yet
        await asyncio.sleep(0.5)


async def answers_alone(http, model, questions, extra) -> dict[str, str]:
    """The answer to each question when nothing else is asked."""
    answers = {}
    for question in questions:
        reply = await ask(http, model, question, extra)
        if reply.error:
            raise SystemExit(f"{question!r}: {reply.error}")
        answers[question] = reply.text
    return answers


async def phase_of(http, args, questions, clients: int, extra) -> Phase:
    """Let so many clients ask for a while."""
    phase = Phase(clients, args.seconds)
    ends = time.monotonic() + args.seconds

    async def client(number: int) -> None:
        chance = random.Random(f"{args.seed} {clients} {number}")
        await asyncio.sleep(chance.random() * min(2.0, args.seconds / 10))
        while time.monotonic() < ends:
            phase.replies.append(await ask(http, args.model, chance.choice(questions), extra))

    async def watch() -> None:
        while time.monotonic() < ends:
            phase.gauges.append(await gauges(http))
            await asyncio.sleep(min(5.0, args.seconds / 6))

    started = time.monotonic()
    await asyncio.gather(watch(), *(client(number) for number in range(clients)))
    phase.seconds = time.monotonic() - started
    await asyncio.sleep(1)
    phase.gauges.append(await gauges(http))
    return phase


async def gauges(http: httpx.AsyncClient) -> dict[str, float]:
    """Memory, open files and unfinished work of the server."""
    text = (await http.get("/metrics")).text
    found = {}
    for line in text.splitlines():
        name, _, value = line.rpartition(" ")
        for key, metric in GAUGES.items():
            if name == metric:
                found[key] = float(value)
        if name.startswith(("coinkv_requests_running", "coinkv_scheduler", "coinkv_tasks")):
            found[name] = float(value)
    return found


def quantile(values: list[float], share: float) -> float:
    """A quantile by rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def summary(phase: Phase, alone: dict[str, str]) -> dict:
    """What a phase comes to."""
    good = [reply for reply in phase.replies if not reply.error]
    wrong = [reply for reply in good if reply.text != alone[reply.question]]
    times = [1000 * reply.ttft_seconds for reply in good]
    memory = [gauge["rss_bytes"] for gauge in phase.gauges if "rss_bytes" in gauge]
    third = max(1, len(memory) // 3)
    return {
        "clients": phase.clients,
        "seconds": round(phase.seconds, 1),
        "answers": len(good),
        "answers_per_second": round(len(good) / phase.seconds, 3),
        "tokens_per_second": round(sum(reply.tokens for reply in good) / phase.seconds, 2),
        "ttft_ms_p50": round(quantile(times, 0.5), 1),
        "ttft_ms_p99": round(quantile(times, 0.99), 1),
        "ttft_ms_max": round(max(times, default=0.0), 1),
        "answer_seconds_p50": round(quantile([reply.seconds for reply in good], 0.5), 3),
        "errors": dict(Counter(reply.error for reply in phase.replies if reply.error)),
        "wrong_answers": len(wrong),
        "wrong": [
            {"question": reply.question, "alone": alone[reply.question], "loaded": reply.text}
            for reply in wrong[:5]
        ],
        "rss_bytes_first_third": statistics.median(memory[:third]) if memory else None,
        "rss_bytes_last_third": statistics.median(memory[-third:]) if memory else None,
        "rss_bytes_growth": (
            round(statistics.median(memory[-third:]) / statistics.median(memory[:third]) - 1, 4)
            if memory
            else None
        ),
        "after": phase.gauges[-1] if phase.gauges else {},
    }


async def beside_library(http, args, questions, extra) -> dict:
    """TTFT of the server and of the library over the same questions.

    Each is measured behind itself and behind the other (server, library, library, server), since
    what computed last has its weights in the processor's cache.
    """
    # as in commands, the server among them: how OpenMP waits (set before torch comes), kept memory
    import coinkv.cli  # noqa: F401
    from coinkv import CoinRAG, Index
    from coinkv.model.allocator import keep_freed_memory

    keep_freed_memory()
    adapter = None if args.adapter == "none" else args.adapter
    asker = CoinRAG(Index.open(args.index), adapter=adapter)
    rows = []
    for question in [questions[0], *questions * args.repeats]:
        first = await ask(http, args.model, question, {**extra, "max_tokens": 1})
        library = [asker.first_token(question, answer_tokens=64) for _ in range(2)]
        second = await ask(http, args.model, question, {**extra, "max_tokens": 1})
        served = [reply.ttft_seconds for reply in (first, second)]
        inside = [reply.server_ttft_ms / 1000 for reply in (first, second)]
        rows.append([served, inside, [each.clock.total_seconds for each in library]])
    served, inside, library = (
        [1000 * seconds for row in rows[1:] for seconds in row[at]] for at in range(3)
    )
    means = [[1000 * statistics.fmean(each) for each in row] for row in rows[1:]]
    return {
        "questions": len(means),
        "served_ttft_ms_median": round(statistics.median(served), 2),
        "engine_ttft_ms_median": round(statistics.median(inside), 2),
        "library_ttft_ms_median": round(statistics.median(library), 2),
        "served_minus_library_ms_median": round(statistics.median(s - o for s, _, o in means), 2),
        "served_minus_engine_ms_median": round(statistics.median(s - i for s, i, _ in means), 2),
        "served_over_library_median": round(statistics.median(s / o for s, _, o in means), 3),
    }


def questions_of(path: Path) -> list[str]:
    """Questions of a JSONL file with `question`, or with `alone` as in follow_ups.jsonl."""
    rows = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    found = [row.get("question") or row.get("alone") for row in rows]
    return list(dict.fromkeys(question for question in found if question))


async def main() -> None:
    """Run the phases and write what they come to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument(
        "--questions", type=Path, default=Path(__file__).parent / "follow_ups.jsonl"
    )
    parser.add_argument("--clients", default="1,4,16,64")
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--index", help="also compare with the library over this index")
    parser.add_argument("--adapter", default="default", help="of the library: what the server has")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--extra", default="{}", help="JSON of further fields of each request")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--to", type=Path)
    args = parser.parse_args()
    questions, extra = questions_of(args.questions), json.loads(args.extra)
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
    async with httpx.AsyncClient(base_url=args.url, timeout=600, limits=limits) as http:
        result = {
            "machine": f"{platform.machine()}, {platform.python_version()}",
            "model": args.model,
            "questions": len(questions),
            "extra": extra,
        }
        await until_ready(http)
        alone = await answers_alone(http, args.model, questions, extra)
        again = await answers_alone(http, args.model, questions, extra)
        result["alone_twice_the_same"] = alone == again
        if args.index:
            result["beside_library"] = await beside_library(http, args, questions, extra)
        result["phases"] = []
        for clients in map(int, args.clients.split(",")):
            phase = summary(await phase_of(http, args, questions, clients, extra), alone)
            print(json.dumps(phase, ensure_ascii=False), flush=True)
            result["phases"].append(phase)
            if args.to:
                args.to.parent.mkdir(parents=True, exist_ok=True)
                args.to.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    print(json.dumps({**result, "phases": "above"}))


if __name__ == "__main__":
    asyncio.run(main())
