"""The queue: who is next."""

from collections import Counter
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from coinkv.serve.scheduler.queue import FairQueue


@dataclass(eq=False)
class Wish:
    client: str
    name: str = ""


def filled(*names, most=100, of_one=100):
    queue = FairQueue(most, of_one)
    for name in names:
        queue.put(Wish(name[0], name))
    return queue


def taken(queue, count, running=None):
    running = Counter(running or {})
    order = []
    for _ in range(count):
        wish = queue.take(running, 1000)
        running[wish.client] += 1
        order.append(wish.name)
    return order


def test_a_client_with_one_request_comes_before_the_second_of_one_with_many():
    queue = filled("a1", "a2", "a3", "b1")
    assert taken(queue, 4) == ["a1", "b1", "a2", "a3"]


def test_the_client_with_the_fewest_running_requests_is_next():
    queue = filled("a1", "b1", "b2")
    assert taken(queue, 3, running={"a": 2}) == ["b1", "b2", "a1"]


def test_a_client_that_has_its_slots_waits_and_others_pass():
    queue = filled("a1", "b1")
    assert queue.take(Counter(a=3, b=2), 3).name == "b1"
    assert queue.take(Counter(a=3), 3) is None
    assert queue.take(Counter(a=2), 3).name == "a1"


def test_there_is_room_for_so_many_and_for_so_many_of_one_client():
    queue = filled("a1", "a2", most=3, of_one=2)
    assert not queue.has_room("a", 0)
    assert queue.has_room("b", 0)
    assert queue.has_room("a", 1)  # one of them will be taken at once
    queue.put(Wish("b"))
    assert not queue.has_room("c", 0)


def test_what_is_taken_out_of_the_line_is_never_served():
    queue = filled("a1", "a2", "b1")
    first = next(iter(queue))
    assert queue.remove(first)
    assert not queue.remove(first)
    assert taken(queue, 2) == ["a2", "b1"]
    assert (len(queue), queue.clients) == (0, 0)


@given(st.lists(st.sampled_from("abcde"), max_size=60))
def test_everybody_is_served_once_and_each_client_in_its_own_order(clients):
    wishes = [Wish(client, str(number)) for number, client in enumerate(clients)]
    queue = FairQueue(1000, 1000)
    for wish in wishes:
        queue.put(wish)
    served = []
    while (wish := queue.take(Counter(each.client for each in served), 1000)) is not None:
        served.append(wish)
    assert sorted(served, key=wishes.index) == wishes
    for client in set(clients):
        of_client = [each for each in served if each.client == client]
        assert of_client == [each for each in wishes if each.client == client]
    for at, wish in enumerate(served):
        counts = Counter(each.client for each in served[:at])
        assert all(counts[wish.client] <= counts[each.client] for each in served[at:])
