"""Nobody sees which parameters are due, every loop trains as the plain one, and what the user does to flags counts."""

import gc
import weakref
from typing import Any

import pytest
import torch
from helpers.flags import STEPS, K, expected_gradients, flags, gradients, undisturbed
from helpers.optimizers import Net, hybrid, loss, network, same, sgd, train
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import mrreg


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointing_recomputes_with_the_flags_of_the_forward(use_reentrant: bool) -> None:
    class Checkpointed(Net):
        def forward(self, x: Tensor) -> Tensor:
            hidden: Any = checkpoint(lambda y: self.trunk(y).relu(), x.requires_grad_(), use_reentrant=use_reentrant)
            return self.head(hidden)  # type: ignore[no-any-return]

    net = Checkpointed()
    net.load_state_dict(network().state_dict())
    optimizer = sgd(net)
    for t in range(STEPS):
        value = loss(net, t)
        optimizer.zero_grad()
        torch.autograd.backward(value)
        assert gradients(net) == expected_gradients(t)
        optimizer.step()
    for p, q in zip(net.parameters(), undisturbed().parameters(), strict=True):
        torch.testing.assert_close(p, q)


def test_several_scales_and_a_model_in_evaluation_mode() -> None:
    """Fine-tuning with frozen statistics; the first step cannot know that no training mode will come."""
    net, twin = network(), network()
    optimizer, other = hybrid(net.eval()), hybrid(twin)
    for t in range(9):
        torch.autograd.backward(loss(net, t))
        assert t < 1 or gradients(net) == [t % 2 == 0, t % 4 == 0, True, True]
        optimizer.step()
        optimizer.zero_grad()
        train(twin, other, range(t, t + 1))
        assert all(flags(net))
        assert same(net, twin)


class TestTheUser:
    """What the user does to flags is honoured."""

    @pytest.mark.parametrize("end", ["close", "with", "delete"])
    def test_an_open_window_closes_at_the_end(self, end: str) -> None:
        net = network()
        optimizer: Any = sgd(net)
        train(net, optimizer, range(1))
        loss(net, 1)
        assert flags(net) == [False, False, True, True]
        if end == "close":
            optimizer.close()
        elif end == "with":
            with optimizer:
                pass
        else:
            del optimizer
            gc.collect()
            assert not net._forward_pre_hooks
            assert not net.trunk._forward_pre_hooks
        assert all(flags(net))
        loss(net, 1)
        assert all(flags(net))

    def test_all_trainable_inside_a_step(self) -> None:
        net = network()
        optimizer = sgd(net)
        train(net, optimizer, range(1))
        loss(net, 1)
        before = flags(net)
        assert before == [False, False, True, True]
        with optimizer.all_trainable():
            loss(net, 1)
            assert all(flags(net))
        assert flags(net) == before

    def test_the_whole_fast_part_frozen_in_mid_cycle(self) -> None:
        """Something must require a gradient: the slow part gets one, and uses it at its sync steps."""
        net = network()
        optimizer = sgd(net)
        for t in range(2 * STEPS):
            net.head.requires_grad_(t % 4 < 2)
            frozen = net.head.weight.detach().clone()
            torch.autograd.backward(loss(net, t))
            slow = net.trunk.weight.detach().clone()
            optimizer.step()
            optimizer.zero_grad()
            assert torch.equal(net.head.weight, frozen) is (t % 4 >= 2)
            assert not torch.equal(net.trunk.weight, slow)

    @pytest.mark.parametrize("end", ["zero_grad", "closure"])
    def test_a_step_that_is_left_out_or_fails_gives_the_flags_back(self, end: str) -> None:
        net = network()
        optimizer = sgd(net)
        train(net, optimizer, range(1))

        def closure() -> float:
            torch.autograd.backward(loss(net, 1))
            raise ZeroDivisionError

        if end == "closure":
            with pytest.raises(ZeroDivisionError):
                optimizer.step(closure)
        else:
            value = loss(net, 1)
            optimizer.zero_grad()  # between forward and backward: the step is still to come
            assert flags(net) == [False, False, True, True]
            torch.autograd.backward(value)
            optimizer.zero_grad()
        assert all(flags(net))
        optimizer.zero_grad()
        train(net, optimizer, range(1, STEPS))
        assert same(net, undisturbed())

    def test_parameters_die_with_model_and_optimizer(self) -> None:
        net: Any = network()
        optimizer: Any = sgd(net)
        train(net, optimizer, range(2))
        dead = weakref.ref(optimizer), weakref.ref(net.trunk.weight)
        del net, optimizer
        gc.collect()
        assert [reference() for reference in dead] == [None, None]


@pytest.mark.parametrize("inside", ["net", "parts.1", "parts.net"])
def test_a_child_that_was_frozen_at_first_is_watched(inside: str) -> None:
    """Gradual unfreezing under a trainer that calls `self.net(x)`: also where the child lies in lists."""
    net = network()
    net.requires_grad_(False)
    net.head.requires_grad_(True)
    holders: dict[str, Any] = {"net": {"net": net}, "parts.1": {"parts": nn.ModuleList([nn.Tanh(), net])},
               "parts.net": {"parts": nn.ModuleDict({"net": net})}}  # fmt: skip
    root = nn.ModuleDict(holders[inside])
    optimizer = mrreg.MultirateSGD(root, lr=0.1, k=K, fast=f"{inside}.head", momentum=0.9)
    for t in range(STEPS):
        net.trunk.requires_grad_(t >= K)
        torch.autograd.backward(loss(net, t))
        assert gradients(net)[:2] == [t == 2 * K or t == K] * 2
        optimizer.step()
        optimizer.zero_grad()
        assert flags(net)[:2] == [t >= K] * 2


def test_a_replica_is_no_forward_of_its_own() -> None:
    net: Any = network()
    optimizer = sgd(net)
    train(net, optimizer, range(1))
    replica = net._replicate_for_data_parallel()
    for hook in replica._forward_pre_hooks.values():
        hook(replica, ())
    assert all(flags(net))


def test_masks_in_the_fast_part() -> None:
    """A masked forward calls its layer with other tensors in the place of the parameters."""
    net: Any = mrreg.mask(network(), {"head": 0.5}, k=2)
    optimizer = sgd(net)
    mrreg.attach(optimizer, net)
    for t in range(STEPS):
        torch.autograd.backward(loss(net, t))
        assert gradients(net) == expected_gradients(t)
        optimizer.step()
        optimizer.zero_grad()
        assert all(flags(net))
