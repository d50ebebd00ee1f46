"""Checks of thin models on two ranks: the same units are absent everywhere, without communication."""

import torch
from helpers.thin import group
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard
from torch.distributed.tensor.debug import CommDebugMode

import mrreg
from distributed.cases import DDP, PLAIN, K, backward, batch, check, equal_to_one_process, plain_net, sharded
from mrreg.masks.install import install

GROUPS = (
    group("0", 5, 3, producer=[("0.weight", 0), ("0.bias", 0)], consumer=[("2.weight", 1)]),
    group("2", 7, 4, producer=[("2.weight", 0), ("2.bias", 0)], consumer=[("4.weight", 1)]),
)


def thin_net() -> nn.Sequential:
    """Trunk 0 and 2, head 4, with both hidden widths thin."""
    return install(plain_net(), GROUPS, k=K)


class Branches(nn.Module):
    """Three residual branches, of which one is off in each cycle."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.first, self.last = nn.Linear(6, 5), nn.Linear(5, 1)
        self.branches = nn.ModuleList(nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 5)) for _ in range(3))
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for branch in self.branches:
            x = x + branch(x)
        return self.last(x)  # type: ignore[no-any-return]


def with_blocks() -> nn.Module:
    return mrreg.thin(Branches(), {"blocks": {"branches.?": 0.3}, "hidden": 0.4}, K, batch(0))[0]


@check
def ddp_blocks(rank: int) -> None:
    net = DDP(with_blocks(), find_unused_parameters=True)
    equal_to_one_process(net, with_blocks(), PLAIN[1], rank, masks=True)


@check
def fsdp_blocks(rank: int) -> None:
    net = with_blocks()
    for branch in net.branches:  # type: ignore[union-attr]
        fully_shard(branch)
    fully_shard(net)
    equal_to_one_process(net, with_blocks(), PLAIN[0], rank, masks=True)


@check
def ddp_thin(rank: int) -> None:
    for options, make in zip(({}, {"gradient_as_bucket_view": True}), PLAIN, strict=True):
        equal_to_one_process(DDP(thin_net(), **options), thin_net(), make, rank, masks=True)


@check
def fsdp_thin(rank: int) -> None:
    for single, make in zip((False, True), PLAIN, strict=True):
        equal_to_one_process(sharded(thin_net(), single), thin_net(), make, rank, masks=True)
    equal_to_one_process(sharded(thin_net(), mesh=(2, 1)), thin_net(), PLAIN[0], rank, masks=True)


@check
def fsdp_thin_after_sharding(rank: int) -> None:
    net = install(sharded(plain_net()), GROUPS, k=K)
    equal_to_one_process(net, thin_net(), PLAIN[1], rank, masks=True)


@check
def fsdp_thin_cut_along_the_other_dimension(rank: int) -> None:
    net = thin_net()
    fully_shard(net, shard_placement_fn=lambda p: Shard(1) if p.dim() > 1 and p.shape[1] % 2 == 0 else None)
    equal_to_one_process(net, thin_net(), PLAIN[0], rank, masks=True)


@check
def fsdp_thin_steps_communicate_nothing(rank: int) -> None:
    net = sharded(thin_net())
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    mrreg.attach(optimizer, net)
    for t in range(K + 1):
        backward(net, batch(t).chunk(2)[rank])
        with CommDebugMode() as said:  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
        assert said.get_total_counts() == 0
