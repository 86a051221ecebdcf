"""Kept KV over budgets, folders, restarts, processes, other models, codecs and damage."""

from __future__ import annotations

import threading

import pytest
import torch
from pieces import gap, own_logits, piece, prompt, same_bits, stored

from coinkv.boost.engine import KVBoost
from coinkv.errors import CoinKVError, InputError, UnsupportedModelError
from coinkv.model.load import load
from tiny_models import REFUSED, SUPPORTED, save_tiny_model

ONE_OF_EACH = ("xbc", "ab", "cab")


def token_bytes(backbone):
    return backbone.shape.values_per_token * backbone.dtype.itemsize + 8


def block_files(folder):
    return sorted(path for path in (folder / "blocks").rglob("*") if path.is_file())


def split_of(boost, *names, **options):
    return boost.first_token(prompt(*names), **options).placed.split


def test_a_budget_of_nothing_keeps_nothing_and_answers_all_the_same(engine, tiny_backbone):
    boost, ids = engine(budget_bytes=0), prompt("a", "b")
    for _ in range(2):
        result = boost.generate(ids, 8)
        assert result.reuse.computed == len(ids)
        assert result.kept_tokens == 0
    assert boost.stats().cache.runs == 0
    assert boost.generate(ids, 8).token_ids == engine().generate(ids, 8).token_ids


def test_a_budget_of_nothing_in_memory_and_a_folder_reuses_from_disk(engine, tmp_path):
    boost, ids = engine(budget_bytes=0, folder=tmp_path), prompt("a", "b")
    boost.warm(ids)
    assert split_of(boost, "a", "b").exact == len(ids) - 1
    assert boost.stats().cache.tiers.memory_bytes == 0


def test_a_budget_for_one_prompt_keeps_within_it_and_stays_right(engine, tiny_backbone):
    backbone = tiny_backbone()
    budget = 300 * token_bytes(backbone)
    boost = engine(budget_bytes=budget)
    for number in range(30):
        ids = prompt("abcdef"[number % 6], "cdefab"[number % 5], f"only {number}")
        assert (
            gap(
                boost.first_token(ids, reuse="exact").placed.logits[0],
                own_logits(backbone, ids)[-1],
            )
            < 1e-5
        )
        boost.generate(ids, 2)
        tiers = boost.stats().cache.tiers
        assert tiers.memory_bytes <= budget
    assert tiers.memory_evictions > 10
    assert boost.stats().cache.runs == tiers.memory_blocks


def test_what_is_evicted_is_planned_no_more(engine, tiny_backbone):
    boost = engine(budget_bytes=300 * token_bytes(tiny_backbone()))
    boost.warm(prompt("a", "b"))
    for number in range(4):
        boost.warm(prompt(f"one {number}", f"two {number}"))
    plan = boost.plan(prompt("a", "b"))
    assert (plan.exact, plan.moved) == (0, 0)


def test_kv_in_a_folder_is_reused_exactly_after_a_restart(engine, tmp_path, tiny_backbone):
    ids = prompt("a", "b", "c")
    with engine(folder=tmp_path) as before:
        answer = before.generate(ids, 12)
        kept = stored(before, ids)
    after = engine(folder=tmp_path)
    again = after.generate(ids, 12)
    assert again.reuse.exact == len(ids) - 1
    assert again.token_ids == answer.token_ids
    assert same_bits(stored(after, ids), kept)
    moved = after.first_token(prompt("x", "b"))
    assert moved.placed.split.moved + moved.placed.split.repaired == 90


def test_a_conversation_goes_on_after_a_restart(engine, tmp_path):
    talk = piece("system", 60)
    for turn in range(3):
        with engine(folder=tmp_path) as boost:
            talk += piece(f"turn {turn}", 20)
            result = boost.generate(talk, 24)
            assert result.reuse.exact == (len(talk) - 21 if turn else 0)
            talk += result.token_ids


def test_pins_outlast_a_restart(engine, tmp_path, tiny_backbone):
    budget = 700 * token_bytes(tiny_backbone())
    with engine(folder=tmp_path, disk_budget_bytes=budget) as boost:
        boost.warm(prompt("a", "b"))
        assert boost.pin(prompt("a", "b")) == 2 * 90 + 8
    with engine(folder=tmp_path, disk_budget_bytes=budget) as boost:
        for number in range(6):
            boost.warm(prompt(f"one {number}", f"two {number}"))
        assert boost.stats().cache.tiers.disk_evictions > 0
        assert boost.plan(prompt("a", "b")).exact == 2 * 90 + 8


def test_a_full_folder_takes_new_kv_after_a_restart(engine, tmp_path, tiny_backbone):
    """REFERENCE 1.4, row 15: a full tier refused all writes for ever."""
    budget = 300 * token_bytes(tiny_backbone())
    for number in range(4):
        with engine(folder=tmp_path, disk_budget_bytes=budget, budget_bytes=0) as boost:
            ids = prompt(f"one {number}", f"two {number}", question=f"{number}")
            assert boost.warm(ids).kept_tokens == len(ids)
            assert boost.plan(ids).exact == len(ids) - 1
            assert boost.stats().cache.tiers.disk_bytes <= budget


def test_a_disk_hit_while_memory_is_full_of_pins_is_served(engine, tmp_path, tiny_backbone):
    """REFERENCE 1.4, row 12: it recursed without end."""
    backbone = tiny_backbone()
    with engine(folder=tmp_path) as boost:
        boost.warm(prompt("a", "b"))
        boost.warm(prompt("c", "d"))
    boost = engine(folder=tmp_path, budget_bytes=200 * token_bytes(backbone))
    split_of(boost, "a", "b")
    boost.pin(prompt("a", "b"))
    for _ in range(3):
        assert split_of(boost, "c", "d").exact == 2 * 90 + 8
    tiers = boost.stats().cache.tiers
    assert tiers.lookups == tiers.memory_hits + tiers.disk_hits + tiers.misses


def test_two_engines_on_one_folder_find_what_the_other_keeps(engine, tmp_path, tiny_backbone):
    one, two = engine(folder=tmp_path), engine(folder=tmp_path)
    one.warm(prompt("a", "b"))
    assert split_of(two, "a", "b").exact == 2 * 90 + 8
    two.warm(prompt("c"))
    first = one.first_token(prompt("c"))
    assert first.placed.split.exact == 90 + 8
    assert gap(first.placed.logits[0], own_logits(tiny_backbone(), prompt("c"))[-1]) < 1e-5
    assert one.invalidate(piece("a")) == 1
    assert split_of(two, "a", "b").exact in (0, 2 * 90 + 8)  # it may hold a copy in memory
    assert engine(folder=tmp_path).plan(prompt("a", "b")).exact == 0


@pytest.mark.parametrize("names", ONE_OF_EACH)
def test_another_namespace_finds_nothing(engine, tmp_path, names):
    """REFERENCE 7, row 15."""
    engine(folder=tmp_path, namespace="one").warm(prompt("a", "b", "c"))
    assert engine(folder=tmp_path, namespace="one").plan(prompt(*names)).computed < 270
    for namespace in ("two", "", "on"):
        other = engine(folder=tmp_path, namespace=namespace)
        assert other.plan(prompt(*names)).computed == len(prompt(*names))
        assert other.stats().cache.runs == 0


def test_another_model_finds_nothing(engine, tmp_path, tiny_backbone, tmp_path_factory):
    """REFERENCE 1.4, row 17; 7, row 13."""
    engine(folder=tmp_path).warm(prompt("a", "b"))
    other_weights = save_tiny_model(tmp_path_factory.mktemp("other"), SUPPORTED["llama"], seed=1)
    others = [
        tiny_backbone("qwen2"),
        tiny_backbone("llama-yarn"),
        load(str(other_weights), device="cpu"),
        load(tiny_backbone().name, device="cpu", dtype="bfloat16"),
    ]
    for backbone in others:
        ids = prompt("a", "b")
        other = engine(backbone, folder=tmp_path)
        assert other.plan(ids).computed == len(ids)
        other.warm(ids)
        assert other.plan(ids).exact == len(ids) - 1


def test_bfloat16_kv_is_kept_bit_for_bit(engine, tmp_path, tiny_backbone):
    """REFERENCE 1.4, row 14: all was cast to float16."""
    backbone = load(tiny_backbone().name, device="cpu", dtype="bfloat16")
    with torch.no_grad():
        backbone.model.model.layers[0].self_attn.v_proj.weight.mul_(1e5)
    boost, ids = engine(backbone, folder=tmp_path, budget_bytes=0), prompt("a")
    made = boost.first_token(ids).placed.live.block()
    boost.warm(ids)
    used = stored(boost, ids)
    assert used.values.dtype == torch.bfloat16
    assert float(used.values.float().abs().max()) > 65504
    assert same_bits(used, made[: len(ids) - 1])


def test_a_damaged_block_is_noticed_and_computed_again(engine, tmp_path):
    """REFERENCE 1.4, row 16; 7, row 12."""
    ids = prompt("a", "b", "c")
    with engine(folder=tmp_path) as boost:
        expected = boost.generate(ids, 12).token_ids
    for path in block_files(tmp_path):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 64
        path.write_bytes(content)
    boost = engine(folder=tmp_path, budget_bytes=0)
    for exact in (0, 256, len(ids) - 1):  # a block is found damaged when it is wanted
        result = boost.generate(ids, 12)
        assert result.token_ids == expected
        assert result.reuse.exact == exact
    assert boost.stats().cache.tiers.damaged == 2


@pytest.mark.parametrize("damage", ["delete", "truncate", "empty"])
def test_a_block_file_that_is_gone_or_cut_short_under_a_running_engine_is_computed_again(
    engine, tmp_path, tiny_backbone, damage
):
    boost, ids = engine(folder=tmp_path, budget_bytes=0), prompt("a", "b", "c")
    boost.warm(ids)
    path = block_files(tmp_path)[0]
    if damage == "delete":
        path.unlink()
    else:
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2] if damage == "truncate" else b"")
    first = boost.first_token(ids)
    assert first.placed.split.exact < len(ids) - 1
    assert gap(first.placed.logits[0], own_logits(tiny_backbone(), ids)[-1]) < 1e-5
    boost.warm(ids)
    assert split_of(boost, "a", "b", "c").exact == len(ids) - 1


@pytest.mark.parametrize("codec", ["int8", "kivi"])
def test_under_a_codec_the_same_is_reused_and_logits_are_near(engine, tiny_backbone, codec):
    raw, coded = engine(), engine(codec=codec)
    for boost in (raw, coded):
        boost.warm(prompt("a", "b", "c"))
    for names in ("abc", "xbc", "axc", "ca", "bb", "xyz"):
        ids = prompt(*names)
        plain, near = raw.first_token(ids), coded.first_token(ids)
        assert near.placed.split == plain.placed.split
        assert bool(near.placed.logits.isfinite().all())
        assert gap(near.placed.logits, plain.placed.logits) < 0.3
    assert coded.stats().cache.tiers.memory_bytes < 0.4 * raw.stats().cache.tiers.memory_bytes


@pytest.mark.parametrize("codec", ["int8", "kivi"])
def test_three_questions_on_one_quantised_text_each_get_an_answer(engine, tmp_path, codec):
    """REFERENCE 7, row 6."""
    boost = engine(codec=codec, folder=tmp_path, budget_bytes=0)
    for question in "123":
        result = boost.generate(prompt("a", "b", question=question), 10)
        assert result.reuse.exact == (0 if question == "1" else 180)
        assert result.token_ids
    with engine(codec=codec, folder=tmp_path) as after:
        assert after.plan(prompt("a", "b", question="4")).exact == 180


def test_kv_that_a_codec_has_rounded_is_not_exact_for_an_engine_that_keeps_it_raw(
    engine, tmp_path, tiny_backbone
):
    ids = prompt("a", "b")
    with engine(folder=tmp_path, codec="kivi") as coded:
        coded.warm(ids)
    first = engine(folder=tmp_path).first_token(ids, reuse="exact")
    assert gap(first.placed.logits[0], own_logits(tiny_backbone(), ids)[-1]) < 1e-5


@pytest.mark.parametrize("name", ["gpt2-learned", "qwen2-m-rope", "mamba-recurrent"])
def test_a_model_whose_kv_cannot_be_moved_is_refused_at_the_door(tmp_path, name):
    """REFERENCE 7, rows 4 and 5."""
    folder = save_tiny_model(tmp_path, REFUSED[name][0])
    with pytest.raises(UnsupportedModelError):
        KVBoost.from_pretrained(str(folder), budget_bytes=10**6)


def test_a_model_with_a_sliding_window_takes_prompts_up_to_it(engine):
    boost = engine("mistral-sliding")
    boost.warm(piece("long", 256))
    assert boost.plan(piece("long", 256)).exact == 255
    with pytest.raises(InputError, match="context window"):
        boost.warm(piece("long", 257))


def test_a_namespace_of_any_text_is_one_of_its_own(engine, tmp_path):
    names = ["", "sheep", "羊", "a\udcff", "a"]
    for number, name in enumerate(names):
        boost = engine(folder=tmp_path, namespace=name)
        assert boost.plan(prompt("a", "b")).exact == 0
        boost.warm(prompt("a", "b"))
        assert boost.stats().cache.tiers.disk_blocks == number + 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget_bytes": -1}, "budget of -1"),
        ({"disk_budget_bytes": -1}, "budget of -1"),
        ({"codec": "zip"}, "no codec is called 'zip'"),
        ({"boundaries": "semantic"}, "boundaries is 'semantic'"),
        ({"chunk_tokens": 3}, "chunk_tokens is 3"),
        ({"repair": "magic"}, "no repair is called 'magic'"),
    ],
)
def test_options_that_cannot_be_used_are_refused_in_one_line(engine, options, message):
    with pytest.raises(InputError, match=message) as caught:
        engine(**options)
    assert "\n" not in str(caught.value)


def test_a_folder_that_is_a_file_is_refused(engine, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CoinKVError, match="this is a file"):
        engine(folder=tmp_path / "file")


def test_many_threads_keep_and_evict_at_once_and_every_answer_is_right(engine, tiny_backbone):
    """REFERENCE 1.4, row 19; 7, row 15."""
    backbone = tiny_backbone()
    boost = engine(budget_bytes=400 * token_bytes(backbone))
    prompts = [prompt(*names) for names in ("ab", "ac", "ba", "cab", "ab", "bc", "ca", "b")]
    expected = [own_logits(backbone, ids)[-1] for ids in prompts]
    faults = []

    def ask(number):
        try:
            for turn in range(6):
                at = (number + turn) % len(prompts)
                boost.generate(prompts[at], 2)
                first = boost.first_token(prompts[at], reuse="exact")
                if gap(first.placed.logits[0], expected[at]) > 1e-5:
                    faults.append((number, turn))
        except Exception as error:  # noqa: BLE001 - what a thread raises is what is tested
            faults.append(error)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert boost.stats().prompts == 8 * 6 * 2
    assert boost.stats().reuse.total == sum(
        2 * len(prompts[(number + turn) % 8]) for number in range(8) for turn in range(6)
    )
