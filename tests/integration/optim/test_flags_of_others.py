"""Flags beside other optimizers, in copies, under torch.compile, and where no forward is seen."""

import copy
import gc
import pickle
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from helpers.flags import STEPS, K, expected_gradients, flags, gradients, undisturbed
from helpers.optimizers import loss, network, same, sgd, train
from torch import nn

import mrreg


class TestOtherOptimizers:
    """A parameter has one optimizer that switches its flag: the newest."""

    def test_a_new_one_takes_over_an_open_window(self) -> None:
        net = network()
        old = sgd(net)
        train(net, old, range(1))
        loss(net, 1)
        new = sgd(net)
        assert all(flags(net))
        old.close()
        torch.autograd.backward(loss(net, 0))
        assert all(gradients(net))
        new.step()
        new.zero_grad()
        del old
        gc.collect()
        torch.autograd.backward(loss(net, 1))
        assert gradients(net) == expected_gradients(1)

    def test_a_plain_one_gets_the_parameters_back_with_a_warning(self) -> None:
        net = network()
        optimizer = sgd(net)
        train(net, optimizer, range(1))
        plain = torch.optim.SGD(net.parameters(), lr=0.1)
        with pytest.warns(mrreg.NoEffectWarning, match=r"SGD.step: 2 parameters get no gradient.* leaves them alone"):
            train(net, plain, range(1))
        assert all(flags(net))
        torch.autograd.backward(loss(net, 1))
        assert all(gradients(net))


class TestUnseen:
    """Where no forward is seen, training is right and saves no time, which a warning says once."""

    def test_inner_parts_called_by_hand(self) -> None:
        net = network()
        optimizer = sgd(net)
        for t in range(STEPS):
            with pytest.warns(mrreg.NoEffectWarning, match="no forward of the model") if t == 0 else nullcontext():
                x, y = (
                    torch.randn(16, 4, generator=(g := torch.Generator().manual_seed(t))),
                    torch.randn(16, 2, generator=g),
                )
                torch.autograd.backward((net.head(torch.relu(net.trunk.forward(x))) - y).square().mean())
                optimizer.step()
            optimizer.zero_grad()
            assert all(flags(net))
        assert same(net, undisturbed())

    def test_nothing_to_switch_nothing_to_warn_of(self) -> None:
        for options in ({"k": 1}, {"gradient": "mean"}):
            net = network()
            optimizer = sgd(net, **options)
            for p in net.parameters():
                p.grad = torch.ones_like(p)
            optimizer.step()

    @pytest.mark.slow
    @pytest.mark.parametrize("place", ["before", "after", "in place"])
    def test_compiled(self, place: str) -> None:
        from torch._dynamo.testing import CompileCounter

        torch._dynamo.reset()
        counter, net = CompileCounter(), network()
        compiled: Any = net
        if place == "before":
            compiled = torch.compile(net, backend=counter)
            optimizer: Any = mrreg.MultirateSGD(compiled, lr=0.1, k=K, fast="head", momentum=0.9)
        else:
            optimizer = sgd(net)
            if place == "after":
                compiled = torch.compile(net, backend=counter)
            else:
                net.compile(backend=counter)
        for t in range(STEPS):
            torch.autograd.backward(loss(compiled, t))
            assert gradients(net) == expected_gradients(t)
            optimizer.step()
            optimizer.zero_grad()
            assert all(flags(net))
        assert counter.frame_count == 2
        assert same(net, undisturbed())


class TestCopies:
    """Copies have no hooks that do anything, and need no mrreg."""

    @pytest.mark.parametrize("copied", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
    @pytest.mark.parametrize("is_open", [True, False])
    def test_a_copied_optimizer_goes_on_and_saves_no_time(self, copied: Any, is_open: bool) -> None:
        net = network()
        optimizer = sgd(net)
        train(net, optimizer, range(2))
        if is_open:
            loss(net, 2)
        twin, other = copied((net, optimizer))
        assert all(flags(twin))
        with pytest.warns(mrreg.NoEffectWarning, match="and in a copy of an optimizer"):
            train(twin, other, range(2, STEPS))
        train(net, optimizer, range(2, STEPS))
        assert same(net, twin)

    def test_a_pickled_model_needs_no_mrreg(self) -> None:
        model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
        optimizer = mrreg.MultirateSGD(model, fast="1")
        pickled = pickle.dumps(model)
        assert b"mrreg" not in pickled
        torch.autograd.backward(pickle.loads(pickled)(torch.ones(1, 4)).sum())
        del optimizer
