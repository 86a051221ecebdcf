"""One process alone has all the work; several share it without leaving anything out."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from coinkv.train.processes import Processes


@pytest.fixture
def alone():
    return Processes(torch.device("cpu"))


def one_of(number, count):
    """A process as it is among others."""
    processes = Processes("cpu")
    processes._accelerator = SimpleNamespace(
        process_index=number, num_processes=count, is_main_process=number == 0
    )
    return processes


def test_one_process_has_everything_and_is_the_main_one(alone):
    assert alone.main
    assert alone.device == torch.device("cpu")
    assert list(alone.share("abc")) == [(0, "a"), (1, "b"), (2, "c")]
    assert alone.gathered({"loss": 1.0}) == [{"loss": 1.0}]
    alone.wait()


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_every_item_goes_to_one_process_under_its_own_number(count):
    shares = [list(one_of(number, count).share("abcde")) for number in range(count)]
    assert sorted(pair for share in shares for pair in share) == list(enumerate("abcde"))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_gradients_of_one_process_stay_and_missing_ones_are_zero(alone):
    with_gradient, without = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    with_gradient.grad = torch.tensor([1.0, 2.0])
    alone.add_gradients([with_gradient, without])
    assert with_gradient.grad.tolist() == [1.0, 2.0]
    assert without.grad.tolist() == [0.0, 0.0]


def test_gradients_of_several_processes_are_added_up_in_their_shapes():
    processes = one_of(0, 2)
    processes._accelerator.reduce = lambda joined, reduction: joined + torch.arange(len(joined))
    shapes = [(2, 3), (4,), ()]
    weights = [torch.nn.Parameter(torch.zeros(shape)) for shape in shapes]
    weights[0].grad = torch.ones(2, 3)
    processes.add_gradients(weights)
    assert [weight.grad.shape for weight in weights] == [torch.Size(shape) for shape in shapes]
    assert weights[0].grad.flatten().tolist() == [1, 2, 3, 4, 5, 6]
    assert weights[1].grad.tolist() == [6, 7, 8, 9]
    assert weights[2].grad.tolist() == 10


@pytest.mark.parametrize("half", [False, True])
def test_a_cpu_computes_in_full_precision(alone, half):
    weight = torch.ones(2, 2)
    with alone.autocast(half=half):
        assert (weight @ weight).dtype == torch.float32
