"""The queue of jobs serves namespaces in turn, and each in its own order."""

from __future__ import annotations

from coinkv.serve.library.fair_queue import FairQueue


def everything(_: object) -> bool:
    return True


def taken(queue: FairQueue[str]) -> list[str]:
    return [item for item in iter(lambda: queue.take(everything), None) if item]


def test_a_client_with_much_to_do_does_not_hold_up_another():
    queue: FairQueue[str] = FairQueue()
    for item in ("a1", "a2", "a3"):
        queue.put("a", item)
    queue.put("b", "b1")
    assert taken(queue) == ["a1", "b1", "a2", "a3"]


def test_what_is_not_ready_is_passed_over_and_keeps_its_place():
    queue: FairQueue[str] = FairQueue()
    for client, item in (("a", "a1"), ("a", "a2"), ("b", "b1")):
        queue.put(client, item)
    assert queue.take(lambda item: item != "a1") == "a2"
    assert queue.take(lambda item: item == "nothing") is None
    assert taken(queue) == ["b1", "a1"]


def test_unwanted_items_are_taken_out():
    queue: FairQueue[str] = FairQueue()
    for client, item in (("a", "a1"), ("a", "a2"), ("b", "b1")):
        queue.put(client, item)
    assert queue.remove(lambda item: item.endswith("1")) == ["a1", "b1"]
    assert list(queue) == ["a2"]
    assert len(queue) == 1
