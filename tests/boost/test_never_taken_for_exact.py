"""Nothing approximate is ever found as exact, whatever was asked before."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pieces import gap, kv_gap, own_block, own_logits, piece, prompt

from coinkv.boost.engine import KVBoost
from coinkv.boost.runs import Run
from coinkv.repair.cacheblend import CacheBlend
from coinkv.repair.selective import Selective
from coinkv.store.tiers import Tiers

PIECE = 40
REPAIRS = ["none", "selective", "epic", "cacheblend", CacheBlend(ratio=1), Selective(window=12)]

asked = st.lists(
    st.tuples(
        st.text("abcde", min_size=1, max_size=5),
        st.sampled_from(["?", "!"]),
        st.sampled_from(["all", "all", "all", "exact", "none"]),
        st.sampled_from(REPAIRS),
        st.sampled_from([0, 1, 20]),
    ),
    min_size=2,
    max_size=6,
)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(questions=asked, small=st.booleans())
def test_exact_reuse_equals_full_prefill_whatever_was_asked_before(
    engine, tiny_backbone, questions, small
):
    backbone = tiny_backbone()
    token_bytes = backbone.shape.values_per_token * 4
    boost = engine(budget_bytes=(250 if small else 100_000) * token_bytes)
    for names, question, reuse, repair, tokens in questions:
        ids = prompt(*names, tokens=PIECE, question=question)
        before = boost.plan(ids, reuse="exact")
        boost.generate(ids, tokens, reuse=reuse, repair=repair)
        first = boost.first_token(ids, reuse="exact")
        assert first.placed.split.moved == first.placed.split.repaired == 0
        assert gap(first.placed.logits[0], own_logits(backbone, ids)[-1]) < 1e-5
        assert kv_gap(first.placed.live.view(), own_block(backbone, ids)) < 1e-5
        if not small and reuse != "none":
            assert first.placed.split.exact >= before.exact


def test_what_stands_behind_moved_kv_is_kept_as_approximate(engine):
    boost = engine()
    boost.warm(prompt("a", "b"))
    ids = [*piece("x", 30), *piece("b"), *piece("new", 60)]
    boost.generate(ids, 20)
    again = boost.plan([*ids, 7])
    assert again.exact == 30
    assert again.moved >= 90 + 60
    assert boost.plan([*ids, 7], reuse="exact").exact == 30
    stats = boost.stats().cache
    assert stats.runs - stats.exact_runs == 1


def test_a_continuation_behind_moved_kv_is_moved_in_the_next_turn_not_exact(engine, tiny_backbone):
    boost = engine()
    boost.warm(prompt("a", "b"))
    talk = [*piece("x", 30), *piece("b"), *piece("turn 1", 30)]
    for turn in (2, 3):
        talk += boost.generate(talk, 30).token_ids
        talk += piece(f"turn {turn}", 30)
        assert boost.plan(talk).exact == 30
    expected = own_logits(tiny_backbone(), talk)[-1]
    assert gap(boost.first_token(talk, reuse="exact").placed.logits[0], expected) < 1e-5


def test_a_known_piece_behind_an_unknown_one_at_its_old_place_is_moved(engine):
    """REFERENCE 1.4, row 6: after a miss a chunk matched as an exact one."""
    boost = engine()
    boost.warm(prompt("a", "b", "c"))
    for names in ("xbc", "xb", "axc", "cb"):
        plan = boost.plan(prompt(*names))
        assert plan.exact == (90 if names[0] == "a" else 0)
        assert plan.moved >= 90


def test_a_piece_kept_from_elsewhere_is_no_beginning(engine, tiny_backbone):
    """REFERENCE 1.4, row 8: what was warmed for another place was found as a beginning."""
    boost = engine()
    boost.warm(prompt("a", "b"))
    ids = prompt("b", question="!")
    first = boost.first_token(ids)
    assert first.placed.split.exact == 0
    assert first.placed.split.moved + first.placed.split.repaired == 90
    exact = boost.first_token(ids, reuse="exact")
    assert exact.placed.split.exact == 0
    assert gap(exact.placed.logits[0], own_logits(tiny_backbone(), ids)[-1]) < 1e-5


def test_exact_kv_is_found_behind_a_beginning_that_is_kept_no_longer(tiny_backbone):
    backbone, tiers = tiny_backbone(), Tiers(10**9)
    boost = KVBoost(backbone, tiers, chunk_tokens=16, repair="selective")
    boost.warm(prompt("a", "b", "c", "d"))
    begins = [key for key, note in tiers.notes() if Run.from_note(key, note).start == 0]
    assert [tiers.delete(key) for key in begins] == [True]
    ids = prompt("a", "b", "c", "d")
    plan = boost.plan(ids, reuse="exact")
    assert plan.spans[0] == (0, 256, "computed")
    assert plan.exact == len(ids) - 1 - 256
    first = boost.first_token(ids, reuse="exact")
    assert gap(first.placed.logits[0], own_logits(backbone, ids)[-1]) < 1e-5
    assert boost.plan(prompt("x", "b", "c", "d"), reuse="exact").exact == 0


def test_full_repair_is_kept_as_what_it_is_exact(engine):
    boost, ids = engine(), prompt("x", "b")
    boost.warm(prompt("a", "b"))
    result = boost.generate(ids, 0, repair=CacheBlend(ratio=1))
    assert result.reuse.computed == len(ids)
    assert boost.plan(ids).exact == len(ids) - 1


def test_what_continues_a_text_is_forgotten_with_it(engine):
    boost, ids = engine(), prompt("a", "b", "c", "d")
    boost.warm(ids)
    boost.warm(prompt("x", "y"))
    assert boost.stats().cache.runs == 3  # 256 tokens and the rest, and one run of the other text
    assert boost.invalidate(piece("a")) == 2
    assert boost.plan(ids).exact + boost.plan(ids).moved == 0
    assert boost.plan(prompt("x", "y")).exact > 0


def test_what_parted_before_a_text_is_not_forgotten_with_it(engine):
    boost = engine(least_reuse=0)
    system = piece("system", 40)
    boost.warm([*system, *piece("a", 150)])
    boost.warm([*system, *piece("b", 150)])
    boost.warm([*system, *piece("a", 150), *piece("c", 150)])
    boost.invalidate(piece("a", 150))
    assert boost.plan([*system, *piece("b", 150)]).exact >= 149
    assert boost.plan(piece("c", 150)).moved == 0
    assert boost.plan([*system, *piece("a", 150)]).exact <= len(system)
