"""DistributedDataParallel on one rank: waiting for gradients that never come; ranks that drift apart."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from helpers.optimizers import loss, network, same, sgd, train
from torch.nn.parallel import DistributedDataParallel

import mrreg


@pytest.fixture
def gloo() -> Iterator[None]:
    store = torch.distributed.HashStore()  # type: ignore[attr-defined]
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("gloo")
class TestDistributedDataParallel:
    """Reports 12, 13: waiting for gradients that never come; ranks that drift apart."""

    def test_plain_is_refused_early(self) -> None:
        wrapped: Any = DistributedDataParallel(network())
        with pytest.raises(RuntimeError, match="find_unused_parameters=True"):
            mrreg.MultirateSGD(wrapped, fast="head")

    def test_plain_and_wrapped_later_is_refused_at_the_first_step(self) -> None:
        net = network()
        optimizer = sgd(net)
        wrapped = DistributedDataParallel(net)
        torch.autograd.backward(loss(wrapped, 0))
        with pytest.raises(RuntimeError, match="find_unused_parameters=True"):
            optimizer.step()

    @pytest.mark.filterwarnings("ignore:You passed find_unused_parameters=true")
    def test_static_graph_is_refused(self) -> None:
        wrapped: Any = DistributedDataParallel(network(), find_unused_parameters=True, static_graph=True)
        with pytest.raises(RuntimeError, match="static_graph"):
            mrreg.MultirateSGD(wrapped, fast="head")

    def test_the_recipe_trains_as_without(self) -> None:
        net, twin = network(), network()
        wrapped = DistributedDataParallel(net, find_unused_parameters=True)
        optimizer, plain = sgd(net), sgd(twin)
        for t in range(7):
            torch.autograd.backward(loss(wrapped, t))
            optimizer.step()
            optimizer.zero_grad()
        train(twin, plain, range(7))
        assert same(net, twin)

    @pytest.mark.parametrize("steps", [0, 2, 3])
    def test_wrapped_while_slow_parts_are_off_is_refused(self, steps: int) -> None:
        """After a forward that no step followed; also where steps were taken before, in another wrapper too."""
        net: Any = network()
        optimizer = sgd(net)
        train(DistributedDataParallel(net, find_unused_parameters=True), optimizer, range(steps))
        if optimizer.due[1]:
            train(net, optimizer, range(steps, steps + 1))
        loss(net, 0)
        wrapped = DistributedDataParallel(net, find_unused_parameters=True)
        before = net.head.weight.clone()
        torch.autograd.backward(loss(wrapped, 2))
        with pytest.raises(RuntimeError, match="never averages"):
            optimizer.step()
        assert torch.equal(before, net.head.weight)

    def test_around_a_frozen_trunk_that_trains_later_is_refused_when_it_does(self) -> None:
        net: Any = network()
        net.trunk.requires_grad_(False)
        wrapped = DistributedDataParallel(net, find_unused_parameters=True)
        optimizer = sgd(net)
        train(wrapped, optimizer, range(4))
        net.trunk.requires_grad_(True)
        torch.autograd.backward(loss(wrapped, 4))
        with pytest.raises(RuntimeError, match=r"built while .* had requires_grad=False"):
            optimizer.step()

    def test_resumed_in_mid_cycle_after_wrapping_is_right(self) -> None:
        net = network()
        optimizer = sgd(net)
        train(net, optimizer, range(2))
        other = copy.deepcopy(net).requires_grad_(True)
        wrapped = DistributedDataParallel(other, find_unused_parameters=True)
        resumed = sgd(other)
        resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        for t in range(2, 7):
            torch.autograd.backward(loss(wrapped, t))
            resumed.step()
            resumed.zero_grad()
        train(net, optimizer, range(2, 7))
        assert same(net, other)

    def test_nothing_is_refused_where_no_flag_is_switched(self) -> None:
        for options in ({"k": 1}, {"gradient": "mean"}):
            wrapped = DistributedDataParallel(network())
            net: Any = wrapped.module
            optimizer = sgd(net, **options)
            for t in range(3):
                torch.autograd.backward(loss(wrapped, t))
                optimizer.step()
                optimizer.zero_grad()
