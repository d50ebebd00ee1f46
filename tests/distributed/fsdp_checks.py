"""Checks of training with fully_shard on two ranks."""

from typing import Any

import torch
from helpers.masks import bits
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.debug import CommDebugMode

import mrreg
from distributed.cases import (
    ENGINES,
    PLAIN,
    STEPS,
    K,
    backward,
    batch,
    check,
    equal_to_one_process,
    full,
    masked_and_multirate,
    masked_net,
    plain_net,
    sgd,
    sharded,
)


@check
def fsdp_multirate(rank: int) -> None:
    for make in ENGINES:
        equal_to_one_process(sharded(plain_net()), plain_net(), make, rank)
    # torch leaves the root's parameters whole after an evaluation, with the flags of that moment
    equal_to_one_process(sharded(plain_net(), single=True), plain_net(), sgd, rank, evaluates=False)


@check
def fsdp_masks(rank: int) -> None:
    for single, make in zip((False, True), PLAIN, strict=True):
        equal_to_one_process(sharded(masked_net(), single), masked_net(), make, rank, masks=True)
    for structure in ("input", "output"):
        equal_to_one_process(sharded(masked_net(structure)), masked_net(structure), PLAIN[1], rank, masks=True)
    equal_to_one_process(sharded(masked_net(), mesh=(2, 1)), masked_net(), PLAIN[0], rank, masks=True)


@check
def fsdp_masks_and_multirate(rank: int) -> None:
    equal_to_one_process(sharded(masked_net(rescale=True)), masked_net(rescale=True), masked_and_multirate, rank, True)


@check
def fsdp_steps_communicate_nothing(rank: int) -> None:
    """Masks are drawn, held and boosted, and parts drift, without a word between ranks; fast steps reduce less."""
    net = sharded(masked_net(boost=2.0))
    optimizer = masked_and_multirate(net)
    mrreg.attach(optimizer, net)
    reduced = []
    for t in range(STEPS):
        with CommDebugMode() as said:  # type: ignore[no-untyped-call]
            backward(net, batch(t).chunk(2)[rank])
        counts = said.get_comm_counts()
        reduced.append(sum(count for name, count in counts.items() if "reduce_scatter" in str(name)))
        with CommDebugMode() as said:  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
        assert said.get_total_counts() == 0
    assert reduced == [3 if t % 2 == 0 else 2 for t in range(STEPS)]  # one for each layer that is due


@check
def fsdp_mixed_precision(rank: int) -> None:
    """Forwards see bfloat16 weights, of which the same entries are slow."""
    from torch.distributed.fsdp import MixedPrecisionPolicy

    net: Any = masked_net().float()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    for layer in net:
        if any(True for _ in layer.parameters()):
            fully_shard(layer, mp_policy=policy)
    fully_shard(net, mp_policy=policy)
    alone: Any = masked_net().float()
    optimizer, other = PLAIN[1](net), PLAIN[1](alone)
    mrreg.attach(optimizer, net)
    mrreg.attach(other, alone)
    for t in range(STEPS):
        slow = [bits(alone[i])["weight"] == 0 for i in (2, 4)]
        before = [full(net[i].weight) for i in (2, 4)]
        for each, by in ((net, optimizer), (alone, other)):
            by.zero_grad()
            backward(each, batch(t).float())
            by.step()
        for i, held, old in zip((2, 4), slow, before, strict=True):
            joint = t % K == K - 1
            assert bool(full(net[i].weight.grad)[held].any()) == joint
            assert torch.equal(full(net[i].weight)[held], old[held]) != joint
