"""Moved reuse: any pattern of hits, each piece moved to its place and mended behind its seam."""

from __future__ import annotations

import pytest
import torch
from pieces import (
    QUESTION,
    gap,
    kv_gap,
    own_block,
    own_logits,
    piece,
    prompt,
    same_bits,
    spans,
    stored,
)

from coinkv.kv.block import KVBlock
from coinkv.model.fill import LiveCache, fill
from coinkv.repair.cacheblend import CacheBlend
from coinkv.repair.epic import Epic
from coinkv.repair.nothing import Nothing
from coinkv.repair.selective import Selective
from tiny_models import SUPPORTED

SOME = ["llama", "qwen2", "qwen3", "llama-yarn", "phi-partial", "cohere-interleaved"]
PIECE = 90
# what is asked for after "a", "b", "c" were seen in this order, and "d" alone
PATTERNS = {
    "the same prompt": "abc",
    "its beginning": "ab",
    "a hole in the middle": "axc",
    "an unseen first piece": "xab",
    "a hole in front and one in the middle": "xayb",
    "two holes and a piece between": "xby",
    "reordered": "cba",
    "turned round": "ca",
    "the same piece twice": "aa",
    "a moved piece twice": "bb",
    "a moved piece three times": "xbbb",
    "from two prompts": "da",
    "from two prompts, a hole between": "dxb",
    "only one moved piece": "c",
    "nothing known": "xyz",
}


@pytest.fixture
def warm(engine):
    def make(model="llama", **options):
        boost = engine(model, **options)
        boost.warm(prompt("a", "b", "c"))
        boost.warm(prompt("d"))
        return boost

    return make


def ids_of(pattern):
    return prompt(*PATTERNS[pattern])


def total(split):
    return split.exact + split.moved + split.repaired + split.computed


@pytest.mark.parametrize("pattern", PATTERNS)
def test_full_repair_gives_the_logits_of_full_prefill(warm, tiny_backbone, pattern):
    boost, ids = warm(), ids_of(pattern)
    expected = own_logits(tiny_backbone(), ids)[-1]
    for repair in (CacheBlend(ratio=1), Selective(window=512), Epic(tokens=512)):
        first = boost.first_token(ids, repair=repair)
        assert gap(first.placed.logits[0], expected) < 1e-5
        assert kv_gap(first.placed.live.view(), own_block(tiny_backbone(), ids)) < 1e-5


@pytest.mark.parametrize("name", sorted(SUPPORTED))
def test_full_repair_gives_the_logits_of_full_prefill_on_every_architecture(
    engine, tiny_backbone, name
):
    boost, backbone = engine(name), tiny_backbone(name)
    boost.warm(prompt("a", "b", tokens=70))
    for names in ("xb", "ba", "axb"):
        ids = prompt(*names, tokens=70)
        first = boost.first_token(ids, repair=CacheBlend(ratio=1))
        assert gap(first.placed.logits[0], own_logits(backbone, ids)[-1]) < 1e-5


@pytest.mark.parametrize("repair", ["selective", "cacheblend", "epic", "none"])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_what_plan_says_is_what_happens_and_the_parts_add_up(warm, pattern, repair):
    boost, ids = warm(), ids_of(pattern)
    plan = boost.plan(ids, repair=repair)
    first = boost.first_token(ids, repair=repair)
    split = first.placed.split
    assert total(split) == plan.prompt_tokens == len(ids)
    assert plan.exact + plan.moved + plan.computed == len(ids)
    assert (split.exact, split.computed) == (plan.exact, plan.computed)
    assert split.moved + split.repaired == plan.moved
    assert split.repaired <= plan.repaired
    assert first.intent.strategy == plan.repair
    for kind in ("exact", "moved", "computed"):
        of_kind = [end - start for start, end, what in plan.spans if what == kind]
        assert sum(of_kind) == getattr(plan, kind)
    edges = [edge for start, end, _ in plan.spans for edge in (start, end)]
    assert edges[0] == 0
    assert edges[-1] == len(ids)
    assert edges[1:-1:2] == edges[2:-1:2]


@pytest.mark.parametrize(
    ("pattern", "exact", "moved"),
    [
        ("the same prompt", 3 * PIECE + QUESTION - 1, 0),
        ("its beginning", 2 * PIECE, 0),
        ("a hole in the middle", PIECE, PIECE),
        ("an unseen first piece", 0, 2 * PIECE),
        ("a hole in front and one in the middle", 0, 2 * PIECE),
        ("two holes and a piece between", 0, PIECE),
        ("turned round", 0, 2 * PIECE),
        ("the same piece twice", PIECE, PIECE),
        ("a moved piece twice", 0, 2 * PIECE),
        ("a moved piece three times", 0, 3 * PIECE),
        ("from two prompts", PIECE, PIECE),
        ("from two prompts, a hole between", PIECE, PIECE),
        ("nothing known", 0, 0),
    ],
)
def test_every_known_piece_is_found_whole_wherever_it_stands(warm, pattern, exact, moved):
    plan = warm().plan(ids_of(pattern))
    assert plan.exact == exact
    assert moved <= plan.moved <= moved + QUESTION  # the question behind "c" may be moved with it
    assert plan.computed == len(ids_of(pattern)) - plan.exact - plan.moved


def test_an_empty_store_computes_everything(engine, tiny_backbone):
    first = engine().first_token(prompt("a", "b"))
    assert total(first.placed.split) == first.placed.split.computed == 2 * PIECE + QUESTION
    expected = own_logits(tiny_backbone(), prompt("a", "b"))[-1]
    assert gap(first.placed.logits[0], expected) < 1e-6


def test_the_only_moved_piece_is_repaired(warm):
    """REFERENCE 1.4, row 4: a single approximate chunk got no repair at all."""
    boost, ids = warm(), prompt("x", "b")
    for repair, repaired in (("selective", 32), ("cacheblend", round(0.15 * PIECE))):
        split = boost.first_token(ids, repair=repair).placed.split
        assert split.repaired == repaired
        assert split.moved == PIECE - repaired


def test_tokens_outside_the_windows_are_the_stored_kv_moved_and_nothing_else(warm, tiny_backbone):
    """REFERENCE 1.4, rows 1 and 3: the window stood before the seam, and no key was rotated."""
    boost, rope = warm(), tiny_backbone().rope
    known = stored(boost, prompt("a", "b", "c"))
    ids = [*piece("a"), *piece("x", 40), *piece("c"), *piece("?", QUESTION)]
    first = boost.first_token(ids, repair=Selective(window=20))
    live = first.placed.live.view()
    assert spans(first)[:3] == ((0, 90, "exact"), (90, 130, "computed"), (130, 228, "moved"))
    assert same_bits(live[:90], known[:90])
    outside = known[180 + 20 : 278].moved_to(torch.arange(130 + 20, 228), rope)
    assert torch.equal(live[150:228].values, outside.values)
    assert gap(live[150:228].keys, outside.keys) < 1e-6
    in_window = known[180:200].moved_to(torch.arange(130, 150), rope)
    differ = (live[130:150].values - in_window.values).abs().amax(dim=(1, 3))  # [layers, tokens]
    assert bool((differ[1:] > 1e-4).all())
    assert live.positions.tolist() == list(range(len(ids)))


@pytest.mark.parametrize("name", SOME)
def test_tokens_in_the_windows_are_what_full_attention_to_that_context_gives(
    warm, tiny_backbone, name
):
    boost, backbone = warm(name), tiny_backbone(name)
    known = stored(boost, prompt("a", "b", "c"))
    ids = [*piece("x", 40), *piece("b"), *piece("a"), *piece("?", QUESTION)]
    first = boost.first_token(ids, repair=Selective(window=20))
    assert spans(first)[1:3] == ((40, 130, "moved"), (130, 220, "moved"))
    joined = LiveCache.for_backbone(backbone, len(ids))
    joined.append(known[90:180].moved_to(torch.arange(40, 130), backbone.rope))
    joined.append(known[0:90].moved_to(torch.arange(130, 220), backbone.rope))
    live = torch.tensor([*range(60), *range(130, 150), *range(220, len(ids))])
    logits = fill(backbone, joined, [ids[at] for at in live], live)
    block = joined.block()
    order = block.positions.argsort()
    expected = KVBlock(block.keys[:, :, order], block.values[:, :, order], block.positions[order])
    assert kv_gap(first.placed.live.view(), expected) < 1e-5
    assert gap(first.placed.logits, logits) < 1e-5


@pytest.mark.parametrize("name", sorted(SUPPORTED))
def test_the_first_layer_of_moved_kv_is_that_of_full_prefill(engine, tiny_backbone, name):
    boost, backbone = engine(name), tiny_backbone(name)
    boost.warm(prompt("a", "b", tokens=70))
    ids = prompt("x", "b", "a", tokens=70)
    first = boost.first_token(ids, repair="none")
    assert first.placed.split.moved == 140
    live, full = first.placed.live.view(), own_block(backbone, ids)
    assert gap(live.keys[0], full.keys[0]) < 1e-5
    assert gap(live.values[0], full.values[0]) < 1e-5
    assert gap(live.keys[-1], full.keys[-1]) > 1e-3


@pytest.mark.parametrize("name", SOME)
def test_text_moved_with_all_of_its_left_context_is_what_encoding_it_there_gives(
    warm, tiny_backbone, name
):
    boost, backbone = warm(name), tiny_backbone(name)
    ids = [*piece("x", 55), *piece("a"), *piece("b"), *piece("?", QUESTION)]
    first = boost.first_token(ids, repair="none")
    assert spans(first)[1] == (55, 235, "moved")
    there = LiveCache.for_backbone(backbone, 180)
    fill(backbone, there, ids[55:235], torch.arange(55, 235), logits="none")
    assert kv_gap(first.placed.live.view()[55:235], there.view()) < 2e-4


def test_a_copy_with_the_present_left_context_is_preferred(warm, tiny_backbone):
    boost = warm()
    boost.warm(prompt("x", "y", "b", question="1"))
    known = stored(boost, prompt("a", "b", "c"))
    ids = [*piece("z", 30), *piece("a"), *piece("b"), *piece("2", QUESTION)]
    first = boost.first_token(ids, repair="none")
    assert spans(first)[1] == (30, 210, "moved")
    moved = known[:180].moved_to(torch.arange(30, 210), tiny_backbone().rope)
    assert torch.equal(first.placed.live.view()[30:210].values, moved.values)


def test_inside_a_piece_that_was_computed_at_once_there_is_no_seam(warm):
    boost = warm()
    split = boost.first_token(prompt("x", "a", "b", "c"), repair="selective").placed.split
    assert (split.repaired, split.moved) == (32, 3 * PIECE + QUESTION - 1 - 32)


def test_cacheblend_computes_fewer_layers_of_fewer_tokens_than_full_prefill(warm, tiny_backbone):
    """REFERENCE 1.4, row 2: the probe was a full prefill."""
    boost, ids = warm(), prompt("x", "b", "a")
    layers = tiny_backbone().shape.layers
    full = boost.first_token(ids, reuse="none").work
    blend = boost.first_token(ids, repair=CacheBlend(ratio=0.15, check_layer=0))
    computed, picks = PIECE + QUESTION, round(0.15 * 2 * PIECE)
    assert full.layer_tokens == layers * len(ids)
    assert blend.work.layer_tokens == layers * computed + 2 * PIECE + (layers - 1) * picks
    assert blend.work.attended < full.attended
    assert blend.placed.split.repaired == picks


def test_tokens_that_the_probe_passes_over_keep_their_moved_kv_in_later_layers(warm, tiny_backbone):
    boost, backbone = warm(), tiny_backbone()
    known = stored(boost, prompt("a", "b", "c"))
    first = boost.first_token(prompt("x", "b"), repair=CacheBlend(ratio=0.2, check_layer=0))
    live, layers = first.placed.live, backbone.shape.layers
    passed_over = (live.layers_computed[90:180] == 1).nonzero()[:, 0]
    picked = (live.layers_computed[90:180] == layers).nonzero()[:, 0]
    assert (len(passed_over), len(picked)) == (72, 18)
    moved = known[90:180].moved_to(torch.arange(90, 180), backbone.rope)
    now = live.view()[90:180]
    assert torch.equal(now.values[1:, :, passed_over], moved.values[1:, :, passed_over])
    assert torch.equal(now.keys[1:, :, passed_over], moved.keys[1:, :, passed_over])
    differ = (now.values[1:, :, picked] - moved.values[1:, :, picked]).abs().amax(dim=(1, 3))
    assert bool((differ > 1e-5).all())


@pytest.mark.parametrize("criterion", ["values", "keys", "key_cosine", "first", "random"])
def test_every_criterion_repairs_the_share_it_is_given(warm, criterion):
    boost = warm()
    for ratio in (0.1, 0.5):
        repair = CacheBlend(ratio=ratio, criterion=criterion, check_layer=0)
        split = boost.first_token(prompt("x", "b", "a"), repair=repair).placed.split
        assert split.repaired == round(ratio * 2 * PIECE)


def test_a_threshold_that_nothing_reaches_repairs_nothing(warm):
    boost, ids = warm(), prompt("x", "b")
    plan = boost.plan(ids, repair=CacheBlend(ratio=1, threshold=1e9))
    split = boost.first_token(ids, repair=CacheBlend(ratio=1, threshold=1e9)).placed.split
    assert (split.moved, split.repaired, plan.repaired) == (PIECE, 0, PIECE)


def test_repair_brings_logits_nearer_to_full_prefill(warm, tiny_backbone):
    boost = warm()
    gaps = dict.fromkeys(("none", "selective", "cacheblend", "full"), 0.0)
    for names in ("xb", "cb", "bca", "xcya", "db"):
        ids = prompt(*names)
        expected = own_block(tiny_backbone(), ids)
        strategies = (Nothing(), Selective(45), CacheBlend(0.5), CacheBlend(1))
        for name, repair in zip(gaps, strategies, strict=True):
            live = boost.first_token(ids, repair=repair).placed.live.view()
            gaps[name] += float((live.values - expected.values).square().mean())
    assert gaps["full"] < gaps["selective"] < gaps["none"]
    assert gaps["full"] < gaps["cacheblend"] < gaps["none"]


def test_moved_and_exact_are_never_one_figure(warm):
    """REFERENCE 7, row 22."""
    boost = warm()
    result = boost.generate(prompt("a", "x", "b"), 4)
    assert result.reuse.exact == PIECE
    assert result.reuse.moved + result.reuse.repaired == PIECE
    assert set(result.to_dict()["reuse"]) == {"exact", "moved", "repaired", "computed"}
