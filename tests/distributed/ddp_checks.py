"""Checks of DistributedDataParallel on two ranks."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join
from torch.optim import Optimizer

import mrreg
from distributed.cases import (
    DDP,
    PLAIN,
    STEPS,
    K,
    agree,
    backward,
    batch,
    check,
    equal_to_one_process,
    full,
    head,
    masked_and_multirate,
    masked_net,
    mean,
    plain_net,
    sgd,
    whole,
)
from mrreg.distributed import reduce_due


@check
def ddp_multirate(rank: int) -> None:
    for make in (whole, mean):  # what the optimizer does is no matter of the wrapper
        equal_to_one_process(DDP(plain_net(), find_unused_parameters=True), plain_net(), make, rank)


@check
def ddp_masks(rank: int) -> None:
    cases: Any = (PLAIN[0], {}), (PLAIN[1], {"static_graph": True}), (PLAIN[0], {"gradient_as_bucket_view": True})
    for make, options in cases:
        equal_to_one_process(DDP(masked_net(), **options), masked_net(), make, rank, masks=True)
    equal_to_one_process(DDP(masked_net("input")), masked_net("input"), PLAIN[0], rank, masks=True)


@check
def ddp_masks_and_multirate(rank: int) -> None:
    net = DDP(masked_net(boost=2.0), find_unused_parameters=True)
    equal_to_one_process(net, masked_net(boost=2.0), masked_and_multirate, rank, masks=True)


@check
def ddp_refused(rank: int) -> None:
    for options in ({}, {"static_graph": True}, {"find_unused_parameters": True, "static_graph": True}):
        net = DDP(plain_net(), **options)
        for hand_over in (
            lambda net=net: mrreg.split(net, fast="4"),
            lambda net=net: mrreg.split(nn.ModuleDict({"inner": net}), fast="inner.4"),
            lambda net=net: mrreg.biases(net),
            lambda net=net: mrreg.MultirateSGD(net, k=K, fast=net.module[4]),
        ):
            with pytest.raises(RuntimeError, match=r"waits for a gradient .* find_unused_parameters=True"):
                hand_over()
        net.cpu()
        mrreg.MultirateSGD(net.parameters(), k=1, fast=net.module[4])  # ordinary training
        del net, hand_over


@check
def ddp_later_refused(rank: int) -> None:
    """A wrapper that comes after the optimizer is found at the first step."""
    net = plain_net()
    optimizer = sgd(net)
    wrapped = DDP(net)
    backward(wrapped, batch(0))
    with pytest.raises(RuntimeError, match="find_unused_parameters=True"):
        optimizer.step()
    assert optimizer.param_groups[0]["clock"] == 0


def frozen_trunk() -> Any:
    net = plain_net()
    net[0].requires_grad_(False)
    return DDP(net, find_unused_parameters=True)


@check
def ddp_trunk_unfrozen_refused(rank: int) -> None:
    words = r"built while .* had requires_grad=False, and never averages .* then wrap the model"
    wrapped = frozen_trunk()
    groups = mrreg.split(wrapped, fast="4")  # still frozen: nothing is wrong yet
    optimizer = mrreg.MultirateSGD(groups, lr=0.1, k=K, model=wrapped)
    for _ in range(2):  # steps that were taken before
        backward(wrapped, batch(0))
        optimizer.step()
    wrapped.module[0].requires_grad_(True)
    for hand_over in (
        lambda: mrreg.split(wrapped, fast="4"),
        lambda: mrreg.biases(wrapped),
        lambda: mrreg.MultirateSGD(wrapped, k=K, fast=wrapped.module[4]),
    ):
        with pytest.raises(RuntimeError, match=words):
            hand_over()
    with pytest.raises(RuntimeError, match=r"'0.bias', '0.weight' had"):
        mrreg.split(wrapped, fast="4")
    before = full(wrapped.module[4].weight)
    backward(wrapped, batch(0))
    with pytest.raises(RuntimeError, match=words):
        optimizer.step()
    assert torch.equal(before, wrapped.module[4].weight)


@check
def ddp_trunk_unfrozen_refused_by_attach(rank: int) -> None:
    net = masked_net()
    net[0].requires_grad_(False)
    wrapped = DDP(net)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    mrreg.attach(optimizer, wrapped).remove()
    net[0].requires_grad_(True)
    with pytest.raises(RuntimeError, match="attach: DistributedDataParallel was built while"):
        mrreg.attach(optimizer, wrapped)


@check
def ddp_built_while_slow_parts_are_off(rank: int) -> None:
    """After a training forward that no step followed, and after steps."""
    net = plain_net()
    optimizer = sgd(net)
    backward(net, batch(0))
    optimizer.step()
    net(batch(1))
    wrapped = DDP(net, find_unused_parameters=True)
    backward(wrapped, batch(1))
    with pytest.raises(RuntimeError, match="never averages"):
        optimizer.step()


@check
def ddp_built_in_mid_cycle(rank: int) -> None:
    net, alone = plain_net(), plain_net()
    optimizer, other = whole(net), whole(alone)
    wrapped: nn.Module = net
    for t in range(STEPS):
        if t == 2:
            wrapped = DDP(net, find_unused_parameters=True)
        backward(wrapped, batch(t) if t < 2 else batch(t).chunk(2)[rank])
        backward(alone, batch(t))
        for o in (optimizer, other):
            o.step()
            o.zero_grad()
        agree(net, alone, rank)


def uneven(
    rank: int, steps: tuple[int, int], wrap_late: bool, masks: bool, **options: Any
) -> tuple[str, Optimizer, Any]:
    """Train on batches of which one rank has more than the other; return what was said at the end of the epoch."""
    net: Any = masked_net() if masks else plain_net()
    wrapped = DDP(net, find_unused_parameters=not masks)
    optimizer = PLAIN[0](net) if masks else whole(net if wrap_late else wrapped)
    if masks:
        mrreg.attach(optimizer, wrapped)
    try:
        with Join([wrapped], **options):  # as Accelerate's join_uneven_inputs; wrapped.join() is the same
            for t in range(steps[rank]):
                backward(wrapped, batch(t))
                optimizer.step()
                optimizer.zero_grad()
    except RuntimeError as error:
        return str(error), optimizer, wrapped
    return "", optimizer, wrapped


@check
def ddp_uneven_inputs(rank: int) -> None:
    words = r"after uneven inputs the ranks have made different numbers of steps: {} on rank 0, {} on rank 1.*drop_last"
    for masks in (False, True):
        for steps, late in (((5, 4), False), ((1, 3), True)):
            said, _, _ = uneven(rank, steps, late, masks)
            where = "attach" if masks else "MultirateSGD"
            assert re.search(f"{where}: {words.format(*steps)}", said), said


@check
def ddp_even_inputs_and_an_early_end(rank: int) -> None:
    """The remedy: an epoch that ends for all ranks where the first one has no batch left."""
    for masks in (False, True):
        said, optimizer, wrapped = uneven(rank, (4, 4), False, masks)
        assert not said
        for _ in range(2):  # another epoch, as even
            with wrapped.join():
                backward(wrapped, batch(1))
                optimizer.step()
        said, optimizer, _ = uneven(rank, (5, 4), False, masks, throw_on_early_termination=True)
        assert "exhausted" in said
        assert optimizer.param_groups[0]["mask_clock" if masks else "clock"] == 4


@check
def ddp_ignores_parameters_on_request(rank: int) -> None:
    net = plain_net()
    DDP._set_params_and_buffers_to_ignore_for_model(net, ["0.weight"])
    mrreg.split(DDP(net, find_unused_parameters=True), fast="4")


@contextmanager
def counted() -> Iterator[list[int]]:
    """Bytes that this rank hands to all_reduce meanwhile."""
    sent, original = [0], dist.all_reduce

    def count(value: Tensor, *args: Any, **kwargs: Any) -> Any:
        sent[0] += value.numel() * value.element_size()
        return original(value, *args, **kwargs)

    with mock.patch.object(dist, "all_reduce", count):
        yield sent


@check
def ddp_sends_what_is_due(rank: int) -> None:
    for bucket_mb, view in ((25, False), (25, True), (1e-6, False)):  # one bucket of all, or one a parameter
        nets = [
            DDP(plain_net(), find_unused_parameters=True, bucket_cap_mb=bucket_mb, gradient_as_bucket_view=view)
            for _ in range(2)
        ]
        nets[1].register_comm_hook(None, reduce_due)
        optimizers = [sgd(nets[0]), whole(nets[1])]
        with counted() as sent:
            for t in range(2 * K):
                for net, optimizer in zip(nets, optimizers, strict=True):
                    backward(net, batch(t).chunk(2)[rank])
                    optimizer.step()
                    optimizer.zero_grad()
                for p, q in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
                    assert torch.equal(p, q)
        fast = sum(p.numel() for p in head(nets[1]).parameters())
        slow = sum(p.numel() for p in nets[1].parameters()) - fast
        assert sent[0] == 8 * 2 * (K * fast + slow), sent


@check
def ddp_due_only_with_accumulation(rank: int) -> None:
    net, alone = DDP(plain_net(), find_unused_parameters=True), plain_net()
    net.register_comm_hook(dist.group.WORLD, reduce_due)
    optimizer, other = sgd(net), sgd(alone)
    for t in range(STEPS):
        with net.no_sync():
            backward(net, batch(t).chunk(2)[rank])
        backward(net, batch(t + 100).chunk(2)[rank])
        backward(alone, batch(t))
        backward(alone, batch(t + 100))
        for o in (optimizer, other):
            o.step()
            o.zero_grad()
        agree(net, alone, rank)
