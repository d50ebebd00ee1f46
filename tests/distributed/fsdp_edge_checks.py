"""Checks on two ranks of what is refused around shards, and of their checkpoints."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.optim import Optimizer

import mrreg
from distributed.cases import (
    PLAIN,
    STEPS,
    K,
    Make,
    adamw,
    backward,
    batch,
    check,
    full,
    masked_and_multirate,
    masked_net,
    plain_net,
    sgd,
    sharded,
)


@check
def fsdp_ranks_agree_on_what_is_a_step(rank: int) -> None:
    """At lr = 0 a step counts if any gradient anywhere is not zero, even one on another rank."""
    net = sharded(nn.Sequential(mrreg.MultirateMask(nn.Linear(2, 2, bias=False), p=0.5, k=K), nn.Linear(2, 2)))
    for make in (sgd, PLAIN[0]):
        optimizer = make(net)
        key = "clock" if make is sgd else "mask_clock"
        if make is not sgd:
            mrreg.attach(optimizer, net)
        for group in optimizer.param_groups:
            group["lr"] = 0.0
        for value, clock in ((0, 0), (rank, 1)):
            for p in net.parameters():
                if p.requires_grad:
                    p.grad = torch.zeros_like(p)
                    p.grad.to_local().fill_(value)  # type: ignore[attr-defined]
            optimizer.step()
            assert optimizer.param_groups[0][key] == clock
        if isinstance(optimizer, mrreg.Multirate):
            optimizer.close()


@check
def fsdp1_refused(rank: int) -> None:
    net = FullyShardedDataParallel(plain_net(), use_orig_params=True, device_id=torch.device("cpu"))
    words = r"without FSDP1, got 'FullyShardedDataParallel'.*fully_shard"
    for hand_over in (
        lambda: mrreg.split(net, fast="4"),
        lambda: mrreg.biases(net),
        lambda: mrreg.MultirateSGD(net, k=K, fast=list(net.parameters())[-1:]),
        lambda: mrreg.attach(PLAIN[0](net), net),
    ):
        with pytest.raises(TypeError, match=words):
            hand_over()


@check
def fsdp_checkpoint(rank: int) -> None:
    """Saved by two ranks at every step of a cycle and loaded into a fresh optimizer: the same training."""
    import tempfile

    from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    def build(masks: bool, make: Make) -> tuple[nn.Module, Optimizer]:
        net = sharded(masked_net() if masks else plain_net())
        optimizer = make(net)
        if masks:
            mrreg.attach(optimizer, net)
        return net, optimizer

    for masks, make, stop in ((False, sgd, 2), (False, adamw, 4), (True, PLAIN[1], 1), (True, masked_and_multirate, 5)):
        net, optimizer = build(masks, make)
        train(net, optimizer, range(stop), rank)
        before = [full(p) for p in net.parameters()]
        model_state, optimizer_state = get_state_dict(net, optimizer)
        assert all(torch.equal(full(p), old) for p, old in zip(net.parameters(), before, strict=True))
        folder = [tempfile.mkdtemp() if rank == 0 else ""]
        dist.broadcast_object_list(folder)
        state_dict_saver.save({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=folder[0])
        other, fresh = build(masks, make)
        model_state, optimizer_state = get_state_dict(other, fresh)
        state: dict[str, Any] = {"model": model_state, "optimizer": optimizer_state}
        state_dict_loader.load(state, checkpoint_id=folder[0])
        set_state_dict(other, fresh, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        train(net, optimizer, range(stop, stop + STEPS), rank)
        train(other, fresh, range(stop, stop + STEPS), rank)
        for (name, p), q in zip(net.named_parameters(), other.parameters(), strict=True):
            assert torch.equal(full(p), full(q)), (name, stop)


def train(net: nn.Module, optimizer: Optimizer, steps: range, rank: int) -> None:
    for t in steps:
        backward(net, batch(t).chunk(2)[rank])
        optimizer.step()
        optimizer.zero_grad()
