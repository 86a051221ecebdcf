"""Laws of eviction: who goes when a budget is full."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kv_blocks import block

from coinkv.store.eviction import SPARE_SHARE, Standing, importance_of, room_for, victims
from coinkv.store.room import Room

STANDINGS = st.dictionaries(
    st.integers(0, 40).map(lambda n: f"{n:02x}"),
    st.builds(
        Standing,
        bytes=st.integers(1, 100),
        importance=st.floats(0, 1e6),
        last_used=st.integers(0, 6).map(float),
        hits=st.integers(0, 9),
        pinned=st.booleans(),
    ),
    max_size=25,
)
AMOUNTS = st.integers(-10, 1500)


def bytes_of(standings: dict[str, Standing], keys: list[str]) -> int:
    return sum(standings[key].bytes for key in keys)


@given(standings=STANDINGS, amount=AMOUNTS)
def test_enough_goes_or_all_that_may_and_nothing_pinned(
    standings: dict[str, Standing], amount: int
) -> None:
    chosen = victims(standings, amount)
    assert len(chosen) == len(set(chosen))
    assert not any(standings[key].pinned for key in chosen)
    free = {key for key, standing in standings.items() if not standing.pinned}
    assert bytes_of(standings, chosen) >= amount or set(chosen) == free


@given(standings=STANDINGS, amount=AMOUNTS)
def test_nobody_goes_for_nothing(standings: dict[str, Standing], amount: int) -> None:
    chosen = victims(standings, amount)
    assert not chosen or bytes_of(standings, chosen[:-1]) < amount


@given(standings=STANDINGS, amount=AMOUNTS, seed=st.integers(0, 9))
def test_the_order_in_which_blocks_are_named_does_not_matter(
    standings: dict[str, Standing], amount: int, seed: int
) -> None:
    shuffled = list(standings.items())
    random.Random(seed).shuffle(shuffled)
    assert victims(dict(shuffled), amount) == victims(standings, amount)


@settings(max_examples=300)
@given(
    standings=STANDINGS,
    amount=AMOUNTS,
    change=st.sampled_from(["hits", "last_used", "importance"]),
    more=st.integers(1, 5),
    data=st.data(),
)
def test_a_block_that_stays_would_stay_with_more_hits_later_use_or_more_importance(
    standings: dict[str, Standing],
    amount: int,
    change: str,
    more: int,
    data: st.DataObject,
) -> None:
    staying = sorted(standings.keys() - set(victims(standings, amount)))
    if not staying:
        return
    key = data.draw(st.sampled_from(staying))
    better = replace(standings[key], **{change: getattr(standings[key], change) + more})
    assert key not in victims(standings | {key: better}, amount)


def test_among_equals_the_least_recently_used_goes_first() -> None:
    standings = {key: Standing(10, 1.0, used) for key, used in (("a", 3.0), ("b", 1.0), ("c", 2.0))}
    assert victims(standings, 30) == ["b", "c", "a"]


def test_a_block_never_found_goes_before_a_somewhat_older_one_that_was() -> None:
    standings = {f"{n}": Standing(10, 1.0, float(n)) for n in range(10)}
    standings["3"] = replace(standings["3"], hits=4)
    assert victims(standings, 40) == ["0", "1", "2", "4"]
    standings["0"] = replace(standings["0"], hits=1000)
    assert "0" in victims(standings, 60), "old fame outlasts everything"


def test_importance_tilts_and_does_not_rule() -> None:
    standings = {f"{n}": Standing(10, 1.0, float(n)) for n in range(10)}
    standings["1"] = replace(standings["1"], importance=1e9)
    assert victims(standings, 30) == ["0", "2", "3"]
    assert "1" in victims(standings, 60), "importance rules"


def test_a_night_without_use_ages_nobody() -> None:
    standings = {f"{n}": Standing(10, 1.0, float(n), hits=n % 3) for n in range(10)}
    later = {key: replace(each, last_used=each.last_used**3) for key, each in standings.items()}
    assert victims(later, 50) == victims(standings, 50)


def test_a_longer_block_is_not_a_more_important_one() -> None:
    kv, _ = block(30)
    assert importance_of(torch.cat([kv, kv, kv])) == pytest.approx(importance_of(kv))


def test_importance_is_of_keys_whatever_the_values() -> None:
    kv = torch.zeros(2, 3, 2, 1, 4)
    kv[0, :, 0], kv[:, :, 1] = 2.0, 1e9
    assert importance_of(kv) == pytest.approx((12 * 4) ** 0.5 / 2)
    assert importance_of(kv.half()) == pytest.approx((12 * 4) ** 0.5 / 2)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_block_with_broken_keys_is_worth_nothing(number: float) -> None:
    kv, _ = block(4)
    kv[2, 1, 0, 0, 3] = number
    assert importance_of(kv) == 0.0


@settings(max_examples=200)
@given(standings=STANDINGS, new=st.integers(1, 150), budget=st.integers(0, 3000))
def test_room_is_made_within_the_budget_with_little_to_spare(
    standings: dict[str, Standing], new: int, budget: int
) -> None:
    goes = room_for(new, standings, budget)
    held = bytes_of(standings, list(standings))
    pinned = sum(each.bytes for each in standings.values() if each.pinned)
    if goes is None:
        assert pinned + new > budget
        return
    left = held - bytes_of(standings, goes) + new
    assert left <= budget
    assert not goes or held + new > budget
    spared = bytes_of(standings, goes[:-1])
    assert not goes or spared < held + new - budget + budget // SPARE_SHARE


def test_a_full_tier_of_many_blocks_does_not_choose_at_every_put() -> None:
    standings = {f"{n:04}": Standing(1, 1.0, float(n)) for n in range(6400)}
    assert len(room_for(1, standings, 6400) or []) == 101
    few = {f"{n:04}": Standing(1000, 1.0, float(n)) for n in range(6)}
    assert len(room_for(1, few, 6000) or []) == 1


@settings(max_examples=150)
@given(
    budget=st.integers(0, 300),
    steps=st.lists(
        st.tuples(
            st.sampled_from(["admit", "leave", "used", "pin", "unpin"]),
            st.integers(0, 12),
            st.integers(1, 90),
        ),
        max_size=40,
    ),
)
def test_a_room_never_holds_more_than_its_budget_and_knows_what_it_holds(
    budget: int, steps: list[tuple[str, int, int]]
) -> None:
    room, held = Room(budget), dict[str, tuple[int, bool]]()
    for clock, (what, number, size) in enumerate(steps):
        key = f"{number:02}"
        if what == "admit" and key not in held:
            goes = room.admit(key, Standing(size, 1.0, float(clock)))
            if goes is None:
                assert size + sum(each for each, pinned in held.values() if pinned) > budget
            else:
                held = {each: held[each] for each in held if each not in goes} | {
                    key: (size, False)
                }
        elif what == "leave":
            assert room.leave(key) == (held.pop(key, None) is not None)
        elif what == "used":
            room.used(key, float(clock))
        elif what in ("pin", "unpin"):
            assert room.pin(key, what == "pin") == (key in held)
            if key in held:
                held[key] = held[key][0], what == "pin"
        assert {each for each in (f"{n:02}" for n in range(13)) if each in room} == held.keys()
        assert room.held_bytes == sum(each for each, _ in held.values()) <= budget
        assert room.pinned() == {each for each, (_, pinned) in held.items() if pinned}
        assert room.pinned_bytes == sum(each for each, pinned in held.values() if pinned)
