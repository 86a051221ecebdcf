"""The scheduler: requests are taken on, computed side by side and decoded together."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from coinkv.errors import BusyError, CoinKVError, NotReadyError
from coinkv.model.decode import Sampling
from coinkv.model.turns import NotWantedError, Turns, calling
from coinkv.serve.scheduler.decoding import DecodingLoop
from coinkv.serve.scheduler.events import Began, Done, Failed
from coinkv.serve.scheduler.job import Errand, Job
from coinkv.serve.scheduler.limits import Limits, Load
from coinkv.serve.scheduler.observer import Observer, Outcome
from coinkv.serve.scheduler.queue import FairQueue
from coinkv.serve.scheduler.task import Task
from coinkv.serve.scheduler.ticket import Ticket

T = TypeVar("T")
_FIRST_GUESS_SECONDS = 2.0
_LONGEST_RETRY_SECONDS = 60.0
_ALONE_SECONDS = 60.0
"""A client is alone, and may take every slot, when no other has asked for so long."""

_log = logging.getLogger(__name__)


class Scheduler:
    """Runs the requests of many clients on one device.

    Every forward pass takes a turn (`coinkv.model.turns`): prompts are computed pass by pass in a
    few worker threads, and all answers advance together, one token a step, in one more. A client
    with many requests delays another's by no more than one. Safe to use from many threads, but for
    `submit` and `call`, which belong to an event loop.

    Args:
        turns: who may compute; shared with every backbone whose tasks are submitted.
        limits: how much is taken on.
        observer: is told of everything.
    """

    def __init__(
        self, turns: Turns, limits: Limits | None = None, observer: Observer | None = None
    ) -> None:
        self.limits = limits or Limits()
        self._turns, self._observer = turns, observer or Observer()
        self._queue: FairQueue[Job] = FairQueue(self.limits.queue, self.limits.queue_of_one)
        self._changed = threading.Condition()
        self._prefilling: set[Job] = set()
        self._decoding: set[Job] = set()
        self._ending: set[Job] = set()
        self._of_client: Counter[str] = Counter()
        self._asked: dict[str, float] = {}  # when each client of late asked last
        self._seconds_of_one = _FIRST_GUESS_SECONDS
        self._draining = self._closed = False
        self._enders = ThreadPoolExecutor(1, "coinkv-ending")
        self._loop = DecodingLoop(self._decoded, self._failed, self._observer)
        self._workers = [
            threading.Thread(target=self._work, name=f"coinkv-prefill-{number}", daemon=True)
            for number in range(min(self.limits.prefills, self.limits.slots))
        ]
        for worker in self._workers:
            worker.start()

    def submit(
        self,
        client: str,
        task: Task,
        samplings: Sequence[Sampling],
        *,
        logprobs: int | None = None,
        deadline_seconds: float | None = None,
    ) -> Ticket:
        """Take a request on. Call it on the event loop that listens.

        Args:
            client: whose it is: clients share the device fairly.
            task: what is to be computed.
            samplings: one for each choice; all continue the same prompt.
            logprobs: tell the likeliest so many tokens of each step; 0: the chosen one only.
            deadline_seconds: the request fails after so long.

        Raises:
            BusyError: too many wait.
            NotReadyError: the scheduler is closing.
        """
        ticket = Ticket(self._give_up, self._observer, deadline_seconds)
        self._take_on(Job(client, task, ticket, samplings, logprobs))
        return ticket

    async def call(
        self,
        client: str,
        work: Callable[[], T],
        *,
        kind: str = "embed",
        deadline_seconds: float | None = None,
    ) -> T:
        """Have something computed in a worker, in its turn, and wait for it.

        Args:
            client: whose it is.
            work: what to do; passes of a model in it take a turn of `turns` each.
            kind: what it is, for the observer.
            deadline_seconds: it fails after so long.

        Raises:
            CoinKVError: what `work` raises.
            BusyError: too many wait.
            DeadlineError: it took too long.
            NotReadyError: the scheduler is closing.
        """
        ticket = Ticket(self._give_up, self._observer, deadline_seconds)
        self._take_on(Job(client, Errand(work, kind), ticket))
        async for event in ticket:
            if isinstance(event, Failed):
                raise event.error
            if isinstance(event, Done):
                result: T = event.result
                return result
        raise TypeError("a ticket ends with Done or Failed")

    def load(self) -> Load:
        """What there is to do."""
        with self._changed:
            return Load(
                queued=len(self._queue),
                waiting_clients=self._queue.clients,
                prefilling=len(self._prefilling),
                decoding=len(self._decoding),
                live_tokens=self._live_tokens(),
                slots=self.limits.slots,
            )

    async def drain(self, seconds: float) -> bool:
        """Take nothing more on and let what is there end; whether it did in time.

        What has not ended then fails.
        """
        with self._changed:
            self._draining = True
        ends = time.monotonic() + seconds
        while self._left() and time.monotonic() < ends:
            await asyncio.sleep(0.02)
        left = self._left()
        self._shut_down(left)
        return not left

    def close(self) -> None:
        """Give up what is there, and end all threads."""
        with self._changed:
            self._draining = self._closed = True
            self._changed.notify_all()
        self._shut_down(self._left())
        for worker in self._workers:
            worker.join()
        self._loop.close()
        self._enders.shutdown(wait=True)

    def _shut_down(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self._give_up(job, "shutdown", Failed(_shutting_down()))

    def _take_on(self, job: Job) -> None:
        with self._changed:
            if self._draining:
                raise _shutting_down()
            running = len(self._prefilling) + len(self._decoding)
            idle = len(self._workers) - len(self._prefilling)
            ahead = max(0, min(idle, self.limits.slots - running))
            if not self._queue.has_room(job.client, ahead):
                waiting = len(self._queue)
                seconds = (waiting + 1) * self._seconds_of_one / self.limits.slots
                raise BusyError(
                    f"the server is busy: {waiting} requests wait",
                    retry_after_seconds=min(max(1.0, seconds), _LONGEST_RETRY_SECONDS),
                )
            self._queue.put(job)
            self._asked[job.client] = job.submitted
            job.ticket.start(job)
            self._changed.notify()
        self._observer.queued(job.order.kind)

    def _left(self) -> list[Job]:
        with self._changed:
            return [*self._queue, *self._prefilling, *self._decoding, *self._ending]

    def _live_tokens(self) -> int:
        return sum(job.tokens for job in (*self._prefilling, *self._decoding, *self._ending))

    def _slots_of_one(self) -> int:
        since = time.perf_counter() - _ALONE_SECONDS
        self._asked = {client: at for client, at in self._asked.items() if at > since}
        return self.limits.slots if len(self._asked) < 2 else self.limits.slots_of_one

    def _next(self) -> Job | None:
        """Wait for a job that may begin; None when all is over."""
        with self._changed:
            while not self._closed:
                running = len(self._prefilling) + len(self._decoding)
                if running < self.limits.slots and self._live_tokens() < self.limits.live_tokens:
                    job = self._queue.take(self._of_client, self._slots_of_one())
                    if job is not None:
                        self._prefilling.add(job)
                        self._of_client[job.client] += 1
                        return job
                self._changed.wait()
            return None

    def _work(self) -> None:
        while (job := self._next()) is not None:
            try:
                job.context.copy().run(self._begin, job)
            except NotWantedError:
                self._release(job)
            except CoinKVError as error:
                self._failed(job, error)
            except Exception:  # noqa: BLE001 - a worker lives on, whatever a model or method does
                _log.exception("a request failed unexpectedly")
                self._failed(job, CoinKVError("the server failed on this request"))

    def _begin(self, job: Job) -> None:
        with calling(job):
            self._computed(job)

    def _computed(self, job: Job) -> None:
        job.require_wanted()
        queue_seconds = time.perf_counter() - job.submitted
        order = job.order
        if isinstance(order, Errand):
            job.leave("done", Done(order.work(), 0.0))
            self._release(job)
            return
        begun = order.begin()
        job.begun = begun
        self._observer.began(order.kind, begun, queue_seconds)
        job.tell(Began(queue_seconds, begun))
        job.open_choices(order, begun)
        self._observer.token(order.kind, len(job.answers()))
        with self._changed:
            self._prefilling.discard(job)
            self._decoding.add(job)
            self._changed.notify_all()
        if job.going:
            self._loop.join(job)
        else:
            self._decoded(job)

    def _decoded(self, job: Job) -> None:
        """All choices have ended, or nobody wants them: the slot is free, the rest can wait."""
        seconds = time.perf_counter() - job.decode_began
        with self._changed:
            self._ending.add(job)
        self._release(job, counted=False)
        try:
            self._enders.submit(job.context.copy().run, self._end, job, seconds)
        except RuntimeError:  # closed meanwhile
            self._forget(job)

    def _end(self, job: Job, decode_seconds: float) -> None:
        try:
            if isinstance(job.order, Task) and job.begun is not None:
                result = job.order.end(job.begun, job.answers(), decode_seconds)
                job.leave("done", Done(result, decode_seconds))
        except CoinKVError as error:
            job.leave("error", Failed(error))
        except Exception:  # noqa: BLE001 - as in a worker
            _log.exception("a request failed at its end")
            job.leave("error", Failed(CoinKVError("the server failed at this request's end")))
        finally:
            self._forget(job)

    def _failed(self, job: Job, error: CoinKVError) -> None:
        job.leave("error", Failed(error))
        if job.begun is not None:
            self._decoded(job)  # what it holds must be given back
        else:
            self._release(job)

    def _release(self, job: Job, *, counted: bool = True) -> None:
        """The job's slot is free."""
        with self._changed:
            if job in self._prefilling or job in self._decoding:
                self._of_client[job.client] -= 1
                if not self._of_client[job.client]:
                    del self._of_client[job.client]
            self._prefilling.discard(job)
            self._decoding.discard(job)
            self._changed.notify_all()
        if counted:
            self._count(job)

    def _forget(self, job: Job) -> None:
        job.forget()
        with self._changed:
            self._ending.discard(job)
            self._changed.notify_all()
        self._count(job)

    def _count(self, job: Job) -> None:
        seconds = time.perf_counter() - job.submitted
        self._seconds_of_one += (seconds - self._seconds_of_one) / 8
        self._observer.ended(job.order.kind, job.outcome or "done", seconds)

    def _give_up(self, job: Job, outcome: Outcome, event: Failed | None = None) -> None:
        if not job.leave(outcome, event):
            return
        with self._changed:
            queued = self._queue.remove(job)
        if queued:
            self._count(job)
        else:
            self._turns.look()


def _shutting_down() -> NotReadyError:
    return NotReadyError("the server is shutting down", hint="ask again later")
