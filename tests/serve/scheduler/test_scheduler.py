"""The scheduler over a tiny model: the same answers as alone, whatever else goes on."""

import asyncio
import gc
import random
import threading
import time
import weakref
from collections import Counter
from dataclasses import replace

import pytest
import torch

from coinkv.boost.engine import KVBoost
from coinkv.errors import BusyError, DeadlineError, InputError, NotReadyError
from coinkv.model.decode import Sampling, decode
from coinkv.model.fill import LiveCache, fill
from coinkv.serve.engines.prompts import PromptTask
from coinkv.serve.scheduler.events import Began, Done, Failed, Token
from coinkv.serve.scheduler.limits import Limits
from coinkv.serve.scheduler.observer import Observer
from coinkv.serve.scheduler.scheduler import Scheduler
from coinkv.serve.scheduler.task import Begun, Task
from coinkv.store.tiers import Tiers

TEXTS = [
    f"The bridge over the river has {n} arches, and the mill {n * 7} paddles. " for n in range(12)
]


class PlainTask(Task):
    """A prompt computed from nothing; can be made to wait, or to fail."""

    kind = "boost"

    def __init__(self, backbone, text, *, room=40, before=None):
        self.backbone = backbone
        self.ids = backbone.tokenize(text).ids
        self.room, self.before = room, before
        self.ended = []

    def begin(self):
        if self.before is not None:
            self.before()
        cache = LiveCache.for_backbone(self.backbone, len(self.ids) + self.room)
        logits = fill(self.backbone, cache, self.ids, torch.arange(len(self.ids)))
        return Begun(cache, logits, len(self.ids), 0, 0.0, {})

    def end(self, begun, answers, decode_seconds):
        self.ended.append((begun.cache.length, answers))
        return answers


class Told(Observer):
    def __init__(self):
        self.outcomes = Counter()
        self.tokens = 0

    def ended(self, kind, outcome, seconds):
        self.outcomes[outcome] += 1

    def token(self, kind, n):
        self.tokens += n


@pytest.fixture
def backbone(tiny_backbone):
    return tiny_backbone()


@pytest.fixture
def endless(backbone):
    """The same model without an end of text: its answers are as long as they may be."""
    return replace(backbone, end_token_ids=frozenset())


@pytest.fixture
def scheduler(backbone):
    made = []

    def make(**limits):
        made.append(Scheduler(backbone.turns, Limits(**limits), Told()))
        return made[-1]

    yield make
    for each in made:
        each.close()


def alone(backbone, text, sampling):
    """The tokens of an answer that nothing else is computed beside."""
    ids = backbone.tokenize(text).ids
    cache = LiveCache.for_backbone(backbone, len(ids) + 40)
    logits = fill(backbone, cache, ids, torch.arange(len(ids)))
    pieces = list(decode(backbone, cache, logits, sampling))
    return [piece.token_id for piece in pieces if piece.token_id is not None]


async def counted(served, requests):
    """How so many requests left, as soon as the observer has been told of all."""
    while sum(served._observer.outcomes.values()) < requests:
        await asyncio.sleep(0.01)
    return served._observer.outcomes


async def events_of(ticket):
    return [event async for event in ticket]


def tokens_of(events, choice=0):
    return [
        event.token_id
        for event in events
        if isinstance(event, Token) and event.choice == choice and event.token_id is not None
    ]


def test_many_requests_at_once_get_the_tokens_they_get_alone(backbone, scheduler):
    chance = random.Random(3)
    samplings = [
        Sampling(chance.randrange(1, 30), temperature=chance.choice([0.0, 1.3]), seed=n)
        for n in range(12)
    ]

    async def run():
        served = scheduler(slots=5, prefills=3)

        async def one(number):
            await asyncio.sleep(chance.random() / 20)
            task = PlainTask(backbone, TEXTS[number])
            return await events_of(served.submit(str(number % 3), task, [samplings[number]]))

        return await asyncio.gather(*map(one, range(12)))

    for text, sampling, events in zip(TEXTS, samplings, asyncio.run(run()), strict=True):
        assert isinstance(events[0], Began)
        assert isinstance(events[-1], Done)
        assert tokens_of(events) == alone(backbone, text, sampling)
        last = [event for event in events if isinstance(event, Token)][-1]
        assert last.finish_reason in ("stop", "length")


def test_choices_of_one_prompt_are_computed_once_and_each_sampled_for_itself(backbone, scheduler):
    samplings = [Sampling(12, temperature=1.5, seed=seed) for seed in range(4)]
    task = PlainTask(backbone, TEXTS[0])

    async def run():
        return await events_of(scheduler().submit("me", task, samplings))

    events = asyncio.run(run())
    assert sum(isinstance(event, Began) for event in events) == 1
    for number, sampling in enumerate(samplings):
        assert tokens_of(events, number) == alone(backbone, TEXTS[0], sampling)
    assert [list(answer.token_ids) for answer in events[-1].result] == [
        tokens_of(events, number) for number in range(4)
    ]


def test_the_cache_holds_the_first_answer_when_the_task_ends(backbone, scheduler):
    task = PlainTask(backbone, TEXTS[1])

    async def run():
        return await events_of(scheduler().submit("me", task, [Sampling(9), Sampling(3)]))

    events = asyncio.run(run())
    ((length, _),) = task.ended
    assert length == len(task.ids) + len(tokens_of(events)) - 1


def test_logprobs_are_those_of_the_model(backbone, scheduler):
    async def run():
        task = PlainTask(backbone, TEXTS[2])
        return await events_of(scheduler().submit("me", task, [Sampling(4)], logprobs=3))

    tokens = [event for event in asyncio.run(run()) if isinstance(event, Token)]
    ids = list(backbone.tokenize(TEXTS[2]).ids)
    for token in tokens:
        if token.token_id is None:
            continue
        cache = LiveCache.for_backbone(backbone, len(ids))
        logs = fill(backbone, cache, ids, torch.arange(len(ids)))[-1].log_softmax(-1)
        best = logs.topk(3)
        assert [top.token_id for top in token.logprob.top] == best.indices.tolist()
        assert token.logprob.chosen.token_id == token.token_id
        assert token.logprob.chosen.logprob == pytest.approx(float(logs[token.token_id]), abs=1e-4)
        ids.append(token.token_id)


def test_more_than_the_queue_holds_is_refused_with_a_time_to_come_back(backbone, scheduler):
    go = threading.Event()

    async def run():
        served = scheduler(slots=1, prefills=1, queue=4)
        tickets = [
            served.submit(str(n), PlainTask(backbone, TEXTS[n], before=go.wait), [Sampling(2)])
            for n in range(5)
        ]
        with pytest.raises(BusyError) as refused:
            served.submit("late", PlainTask(backbone, TEXTS[5]), [Sampling(2)])
        assert refused.value.retry_after_seconds >= 1
        go.set()
        done = await asyncio.gather(*map(events_of, tickets))
        assert all(isinstance(events[-1], Done) for events in done)
        served.submit("late", PlainTask(backbone, TEXTS[5]), [Sampling(2)])

    asyncio.run(run())


def test_a_client_with_many_requests_holds_another_up_by_one_at_most(backbone, scheduler):
    go, order = threading.Event(), []

    async def run():
        served = scheduler(slots=1, prefills=1)

        async def one(client):
            task = PlainTask(backbone, TEXTS[0], before=go.wait)
            await events_of(served.submit(client, task, [Sampling(1)]))
            order.append(client)

        waiting = [asyncio.create_task(one("many")) for _ in range(6)]
        await asyncio.sleep(0.05)
        waiting.append(asyncio.create_task(one("few")))
        await asyncio.sleep(0.05)
        go.set()
        await asyncio.gather(*waiting)

    asyncio.run(run())
    assert order.index("few") <= 2  # behind the one that ran when it came, and one more


def test_a_client_that_leaves_frees_its_slot(backbone, endless, scheduler):
    async def run():
        served = scheduler(slots=1, prefills=1)
        task = PlainTask(endless, TEXTS[0], room=400)
        long = served.submit("me", task, [Sampling(400)])
        async for event in long:
            if isinstance(event, Token):
                long.cancel()
                break
        events = await asyncio.wait_for(
            events_of(served.submit("you", PlainTask(backbone, TEXTS[1]), [Sampling(3)])), 20
        )
        assert tokens_of(events) == alone(backbone, TEXTS[1], Sampling(3))
        outcomes = await counted(served, 2)
        assert not served.load().busy
        ((length, (answer,)),) = task.ended
        assert length <= len(task.ids) + answer.tokens  # what came is kept in step
        assert answer.tokens < 300
        return outcomes

    assert asyncio.run(run()) == {"cancelled": 1, "done": 1}


def test_a_client_that_leaves_the_queue_is_never_computed(backbone, scheduler):
    go = threading.Event()

    async def run():
        served = scheduler(slots=1, prefills=1)
        first = served.submit("a", PlainTask(backbone, TEXTS[0], before=go.wait), [Sampling(1)])
        computed = []
        second = served.submit(
            "b", PlainTask(backbone, TEXTS[1], before=lambda: computed.append(1)), [Sampling(1)]
        )
        await asyncio.sleep(0.02)
        second.cancel()
        assert served.load().queued == 0
        go.set()
        await events_of(first)
        assert not computed

    asyncio.run(run())


def test_a_prompt_given_up_in_the_middle_is_not_computed_to_its_end(backbone, scheduler):
    async def run():
        served = scheduler()
        passes = []
        ticket = None

        class LongTask(PlainTask):
            def begin(self):
                for at in range(1000):
                    passes.append(at)
                    if at == 3:
                        ticket.cancel()
                    super().begin()

        ticket = served.submit("me", LongTask(backbone, TEXTS[0]), [Sampling(1)])
        assert await counted(served, 1) == {"cancelled": 1}
        assert not served.load().busy
        assert len(passes) == 4

    asyncio.run(run())


def test_a_deadline_ends_what_waits_and_what_streams(backbone, endless, scheduler):
    async def run():
        served = scheduler(slots=1, prefills=1)
        long = PlainTask(endless, TEXTS[0], room=400)
        streaming = served.submit("a", long, [Sampling(400)], deadline_seconds=0.12)
        waiting = served.submit(
            "b", PlainTask(backbone, TEXTS[1]), [Sampling(2)], deadline_seconds=0.05
        )
        both = await asyncio.gather(events_of(streaming), events_of(waiting))
        for events in both:
            assert isinstance(events[-1], Failed)
            assert isinstance(events[-1].error, DeadlineError)
        assert tokens_of(both[0])
        assert not tokens_of(both[1])
        assert await counted(served, 2) == {"deadline": 2}
        assert not served.load().busy

    asyncio.run(run())


@pytest.mark.parametrize("broken", [InputError("too odd"), RuntimeError("a bug")])
def test_a_request_that_fails_harms_no_other(backbone, scheduler, broken):
    def fail():
        raise broken

    async def run():
        served = scheduler()
        good = served.submit("a", PlainTask(backbone, TEXTS[0]), [Sampling(8)])
        bad = served.submit("b", PlainTask(backbone, TEXTS[1], before=fail), [Sampling(8)])
        return await asyncio.gather(events_of(good), events_of(bad))

    good, bad = asyncio.run(run())
    assert tokens_of(good) == alone(backbone, TEXTS[0], Sampling(8))
    (failed,) = bad
    assert isinstance(failed, Failed)
    assert "bug" not in str(failed.error)


def test_a_step_that_fails_ends_its_streams_and_the_next_ones_go_well(
    backbone, scheduler, monkeypatch
):
    from coinkv.model.rows import Rows

    async def run():
        served = scheduler()
        task = PlainTask(backbone, TEXTS[0])
        with monkeypatch.context() as patch:
            patch.setattr(Rows, "step", lambda *_: 1 / 0)
            events = await events_of(served.submit("a", task, [Sampling(8)]))
            assert isinstance(events[-1], Failed)
        while not task.ended:  # what it held is given back
            await asyncio.sleep(0.01)
        again = await events_of(served.submit("a", PlainTask(backbone, TEXTS[0]), [Sampling(8)]))
        assert tokens_of(again) == alone(backbone, TEXTS[0], Sampling(8))

    asyncio.run(run())


def test_an_errand_is_done_in_its_turn_and_its_errors_arrive(scheduler):
    def fail():
        raise InputError("no such text")

    async def run():
        served = scheduler()
        assert await served.call("me", lambda: 41 + 1) == 42
        with pytest.raises(InputError, match="no such text"):
            await served.call("me", fail)

    asyncio.run(run())


def test_draining_lets_streams_end_and_takes_nothing_more_on(backbone, scheduler):
    async def run():
        served = scheduler()
        ticket = served.submit("a", PlainTask(backbone, TEXTS[0]), [Sampling(20)])
        listening = asyncio.create_task(events_of(ticket))
        draining = asyncio.create_task(served.drain(20))
        await asyncio.sleep(0)
        with pytest.raises(NotReadyError):
            served.submit("b", PlainTask(backbone, TEXTS[1]), [Sampling(2)])
        assert await draining
        assert tokens_of(await listening) == alone(backbone, TEXTS[0], Sampling(20))

    asyncio.run(run())


def test_what_does_not_end_in_time_is_told_so(backbone, endless, scheduler):
    async def run():
        served = scheduler()
        task = PlainTask(endless, TEXTS[0], room=400)
        ticket = served.submit("a", task, [Sampling(400)])
        listening = asyncio.create_task(events_of(ticket))
        assert not await served.drain(0.1)
        events = await listening
        assert isinstance(events[-1].error, NotReadyError)

    asyncio.run(run())


def test_prompts_of_one_engine_reuse_each_other_and_the_answer_too(backbone, scheduler):
    engine = KVBoost(backbone, Tiers(50_000_000), repair="selective", least_reuse=0.0)
    text = " ".join(TEXTS[:5])

    async def run():
        served = scheduler()

        async def ask(prompt):
            task = PromptTask(lambda: engine, backbone, prompt, answer_tokens=40)
            return await events_of(served.submit("me", task, [Sampling(40)]))

        first = await ask(text)
        second = await ask(text)
        answer = first[-1].result
        followed = await ask([*backbone.tokenizer(text)["input_ids"], *answer.token_ids, 5, 6, 7])
        return first, second, followed

    first, second, followed = asyncio.run(run())
    assert second[0].begun.cached_tokens >= 0.9 * second[0].begun.prompt_tokens
    assert tokens_of(first) == tokens_of(second)
    whole = followed[0].begun
    assert whole.facts["reuse"]["exact"] > first[0].begun.prompt_tokens
    assert first[-1].result.kept_tokens > first[0].begun.prompt_tokens


def test_nothing_begins_while_the_running_requests_hold_too_much_kv(backbone, endless, scheduler):
    go = threading.Event()

    async def run():
        served = scheduler(slots=4, prefills=4, live_tokens=100)
        long = served.submit("a", PlainTask(endless, TEXTS[0], room=400), [Sampling(400)])
        async for event in long:
            if isinstance(event, Token):
                break
        began = time.perf_counter()
        short = served.submit("b", PlainTask(backbone, TEXTS[1], before=go.wait), [Sampling(1)])
        await asyncio.sleep(0.05)
        load = served.load()
        assert load.queued == 1 or not load.decoding
        long.cancel()
        go.set()
        assert isinstance((await events_of(short))[-1], Done)
        assert time.perf_counter() > began

    asyncio.run(run())


def test_the_kv_of_a_request_is_let_go_with_its_end(backbone, scheduler):
    async def run():
        served = scheduler()
        task = PlainTask(backbone, TEXTS[0])
        task.begin = lambda begin=task.begin: caches.append(weakref.ref((b := begin()).cache)) or b
        await events_of(served.submit("a", task, [Sampling(4), Sampling(6)]))
        while served._ending:
            await asyncio.sleep(0.01)

    caches = []
    gc.collect()
    gc.disable()  # a cycle would keep it until the collector comes by
    try:
        asyncio.run(run())
        assert [each() for each in caches] == [None]
    finally:
        gc.enable()


@pytest.mark.parametrize(("others", "most"), [(0, 3), (1, 2)])
def test_a_client_takes_all_slots_only_while_it_is_alone(backbone, scheduler, others, most):
    go = threading.Event()

    async def run():
        served = scheduler(slots=3, prefills=3)
        for _ in range(others):
            await served.call("another", lambda: None)
        tickets = [
            served.submit("me", PlainTask(backbone, text, before=go.wait), [Sampling(1)])
            for text in TEXTS[:5]
        ]
        await asyncio.sleep(0.1)
        load = served.load()
        go.set()
        await asyncio.gather(*map(events_of, tickets))
        return load

    load = asyncio.run(run())
    assert (load.prefilling, load.queued) == (most, 5 - most)
