"""A network with BatchNorm layers in a slow and in a fast part, and its training."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

import mrreg

K = 3
END = 2 * K + 2
POLICIES = ("every", "sync", "never")


def network() -> Any:
    """Layers 0 to 2 are slow, 3 to 5 fast."""
    torch.manual_seed(0)
    trunk = [nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh()]
    return nn.Sequential(*trunk, nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))


def slow_trunk(model: Any, k: int = K, **options: Any) -> mrreg.MultirateSGD:
    fast = [model[i] for i in (3, 4, 5)]
    return mrreg.MultirateSGD(model, lr=0.05, k=k, fast=fast, momentum=0.9, **options)


def batch(t: int) -> Tensor:
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(t))


def train(model: nn.Module, optimizer: Any, steps: Iterable[int], forwards: int = 1) -> None:
    for t in steps:
        for i in range(forwards):
            model.train()
            model(batch(forwards * t + i)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def same(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


def counts(model: Any) -> tuple[int, int]:
    return int(model[1].num_batches_tracked), int(model[4].num_batches_tracked)
