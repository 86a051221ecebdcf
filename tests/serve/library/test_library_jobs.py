"""Jobs are found by their owners only, and watchers hear of every end."""

from __future__ import annotations

import asyncio
import threading
from contextlib import aclosing

import pytest

from coinkv.errors import JobNotFoundError
from coinkv.serve.library.jobs import Job, JobBoard, new_job_id


def job(namespace="a"):
    return Job(new_job_id(), namespace, "village", "add")


def test_a_job_exists_for_its_own_namespace_only():
    board = JobBoard()
    mine = board.put(job("a"))
    assert board.get("a", mine.id) is mine
    for namespace, identifier in (("b", mine.id), ("a", "job_none")):
        with pytest.raises(JobNotFoundError, match="no job"):
            board.get(namespace, identifier)


def test_a_watcher_sees_the_job_at_once_and_then_its_end():
    board = JobBoard()
    mine = board.put(job())

    async def watched():
        seen = []
        async for now in board.watch("a", mine.id):
            seen.append(now.state)
            if now.state == "waiting":
                threading.Thread(
                    target=board.change, args=(mine.id,), kwargs={"state": "done"}
                ).start()
        return seen

    assert asyncio.run(asyncio.wait_for(watched(), 10)) == ["waiting", "done"]


def test_a_watcher_that_is_slow_is_told_the_latest_only():
    board = JobBoard()
    mine = board.put(job())

    async def watched():
        seen = []
        async for now in board.watch("a", mine.id):
            seen.append(now.done)
            if now.done == 0:
                for done in range(1, 100):
                    board.change(mine.id, done=done, state="running")
                board.change(mine.id, done=100, state="done")
        return seen

    assert asyncio.run(asyncio.wait_for(watched(), 10)) == [0, 100]


def test_a_watcher_that_leaves_is_forgotten():
    board = JobBoard()
    mine = board.put(job())

    async def leave():
        async with aclosing(board.watch("a", mine.id)) as watching:
            await anext(watching)
            assert board._watchers
        waiting = asyncio.create_task(anext(board.watch("a", mine.id)))
        await waiting

    asyncio.run(leave())
    board.change(mine.id, state="running")
    assert board._watchers == {} or not any(board._watchers.values())


def test_a_watcher_whose_loop_has_ended_does_not_disturb_a_job():
    board = JobBoard()
    mine = board.put(job())
    loop = asyncio.new_event_loop()
    watching = board.watch("a", mine.id)
    loop.run_until_complete(anext(watching))
    loop.close()
    assert board.change(mine.id, state="done").ended


def test_of_the_jobs_that_have_ended_the_oldest_are_forgotten():
    board = JobBoard()
    waiting = board.put(job())
    done = [board.put(job()) for _ in range(1002)]
    for each in done:
        board.change(each.id, state="done")
    assert board.get("a", waiting.id)
    assert board.get("a", done[-1].id).finished
    with pytest.raises(JobNotFoundError):
        board.get("a", done[0].id)
    assert len(board.all()) == 1001
