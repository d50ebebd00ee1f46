"""`requires_grad` between steps: who needs a gradient, what the user froze, and what backward then saves."""

import copy
import gc
import pickle
import weakref
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from helpers.optimizers import Net, network, sgd, train
from torch import nn

import mrreg


@pytest.fixture(autouse=True)
def mode() -> None:
    """Flags that are visible between steps, without a model."""


def flags(net: nn.Module) -> list[bool]:
    return [p.requires_grad for p in net.parameters()]


class TestRequiresGrad:
    """Reports 10, 11: frameworks that thaw what the user froze, or leave frozen what they froze."""

    def test_says_before_each_step_which_part_needs_a_gradient(self) -> None:
        net = network()
        optimizer = sgd(net)
        for t in range(7):
            assert flags(net) == [t % 3 == 0] * 2 + [True] * 2
            train(net, optimizer, range(t, t + 1))

    def test_frozen_by_the_user_before_construction_stays_frozen(self) -> None:
        net = network()
        net.trunk.bias.requires_grad_(False)
        net.head.bias.requires_grad_(False)
        before = copy.deepcopy(net.state_dict())
        optimizer = sgd(net)
        seen: list[bool] = []
        train(net, optimizer, range(7), lambda: seen.extend(flags(net)[1::2]))
        assert not any(seen)
        optimizer.close()
        assert flags(net) == [True, False, True, False]
        assert torch.equal(net.trunk.bias, before["trunk.bias"])

    def test_frozen_by_the_user_during_training_stays_frozen(self) -> None:
        net = network()
        optimizer = sgd(net)
        net.trunk.weight.requires_grad_(False)
        before = net.trunk.weight.clone()
        seen: list[bool] = []
        train(net, optimizer, range(7), lambda: seen.append(net.trunk.weight.requires_grad))
        assert not any(seen)
        assert torch.equal(net.trunk.weight, before)
        net.trunk.weight.requires_grad_(True)  # and trains again when the user says so
        with pytest.warns(mrreg.NoEffectWarning, match="1 parameters was switched on between two gradients"):
            train(net, optimizer, range(7, 12))
        assert not torch.equal(net.trunk.weight, before)
        optimizer.close()
        assert all(flags(net))

    def test_switched_on_by_the_user_in_mid_cycle_stays_on_and_changes_no_result(self) -> None:
        net, twin = network(), network()
        optimizer, plain = sgd(net), sgd(twin)
        for t in range(8):
            if t == 1:
                net.requires_grad_(True)
            with pytest.warns(mrreg.NoEffectWarning, match="2 parameters") if t == 1 else nullcontext():
                train(net, optimizer, range(t, t + 1))
            train(twin, plain, range(t, t + 1))
            assert flags(net) == ([True] * 4 if 1 <= t < 3 else flags(twin))
            assert all(torch.equal(p, q) for p, q in zip(net.parameters(), twin.parameters(), strict=True))

    def test_thawed_later_by_the_user_trains(self) -> None:
        net = network()
        net.trunk.requires_grad_(False)
        optimizer = sgd(net)
        train(net, optimizer, range(4))
        before = net.trunk.weight.clone()
        net.trunk.requires_grad_(True)
        with pytest.warns(mrreg.NoEffectWarning, match="give the optimizer the model"):
            train(net, optimizer, range(4, 7))
        assert not torch.equal(net.trunk.weight, before)

    @pytest.mark.parametrize("end", ["close", "with", "del", "error"])
    def test_is_given_back_at_the_end(self, end: str) -> None:
        net = network()
        optimizer: Any = sgd(net)
        train(net, optimizer, range(2))
        assert not all(flags(net))
        if end == "close":
            optimizer.close()
        elif end == "del":
            del optimizer
            gc.collect()
        else:
            problem = ZeroDivisionError if end == "error" else StopIteration
            with pytest.raises(problem), optimizer:
                raise problem
        assert all(flags(net))

    def test_goes_on_after_close(self) -> None:
        net, twin = network(), network()
        optimizer, plain = sgd(net), sgd(twin)
        for t in range(9):
            train(net, optimizer, range(t, t + 1))
            train(twin, plain, range(t, t + 1))
            optimizer.close()
            assert all(flags(net))
        assert all(torch.equal(p, q) for p, q in zip(net.parameters(), twin.parameters(), strict=True))

    def test_an_optimizer_built_again_still_saves_time(self) -> None:
        """A notebook cell run twice: the first optimizer lives until the second is there."""
        net = network()
        optimizer = sgd(net)
        train(net, optimizer, range(2))
        optimizer = sgd(net)
        assert all(flags(net))
        gc.collect()
        train(net, optimizer, range(2))
        gc.collect()
        assert flags(net) == [False, False, True, True]
        del optimizer
        gc.collect()
        assert all(flags(net))

    def test_parameters_die_with_model_and_optimizer(self) -> None:
        net = network()
        optimizer = sgd(net)
        train(net, optimizer, range(2))
        dead = weakref.ref(optimizer), weakref.ref(net.trunk.weight)
        del net, optimizer
        gc.collect()
        assert [reference() for reference in dead] == [None, None]

    def test_a_copy_knows_what_was_trainable(self) -> None:
        net = network()
        optimizer = sgd(net)
        train(net, optimizer, range(2))
        for other_net, other in (copy.deepcopy((net, optimizer)), pickle.loads(pickle.dumps((net, optimizer)))):
            assert flags(other_net) == [False, False, True, True]
            other.close()
            assert all(flags(other_net))
        assert flags(net) == [False, False, True, True]


@pytest.mark.filterwarnings("ignore::mrreg.errors.NoEffectWarning")  # about flags that were switched on
def test_a_fast_layer_below_the_slow_ones_trains_as_with_everything_on() -> None:
    net, twin = network(), network()
    optimizers = []
    for each in (net, twin):
        optimizers.append(mrreg.MultirateSGD(each.parameters(), lr=0.1, k=3, fast=each.trunk, momentum=0.9))
        train(each, optimizers[-1], range(8), (lambda: twin.requires_grad_(True)) if each is twin else None)
    assert all(torch.equal(p, q) for p, q in zip(net.parameters(), twin.parameters(), strict=True))


def test_saving_time_is_what_backward_reaches() -> None:
    """Report 22: at a fast step no gradient of the trunk is computed, nor of its input."""
    net = Net()
    optimizer = sgd(net)
    train(net, optimizer, range(1))
    hidden = net.trunk(torch.randn(3, 4))
    assert not hidden.requires_grad
    assert net.head(hidden).requires_grad
