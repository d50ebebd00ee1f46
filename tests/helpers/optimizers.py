"""A small network with batches, and the optimizers under test: shared by the tests of `Multirate`."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import lion_pytorch  # type: ignore[import-untyped]
import pytorch_optimizer
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import mrreg


class Net(nn.Module):
    """A trunk of 40 and a head of 18 parameters."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.trunk = nn.Linear(4, width)
        self.head = nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.trunk(x).relu())
        return out


Make = Callable[[Net], Optimizer]


@dataclass(frozen=True)
class Base:
    """A base optimizer with its options."""

    kind: Any
    options: dict[str, Any]

    def __call__(self, params: Iterable[Tensor]) -> Optimizer:
        built: Optimizer = self.kind(params, **self.options)
        return built

    def __str__(self) -> str:
        return "-".join([f"{self.kind.__module__.split('.')[0]}.{self.kind.__name__}", *map(str, self.options)])


TORCH = [
    Base(torch.optim.SGD, {"lr": 0.1}),
    Base(torch.optim.SGD, {"lr": 1e-3, "weight_decay": 0.1, "maximize": True}),
    Base(torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    Base(torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    Base(torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.5, "foreach": True}),
    Base(torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "fused": True}),
    Base(torch.optim.Adam, {"lr": 0.01}),
    Base(torch.optim.Adam, {"lr": 0.01, "amsgrad": True, "foreach": True}),
    Base(torch.optim.AdamW, {"lr": 0.01}),
    Base(torch.optim.AdamW, {"lr": 0.01, "fused": True}),
    Base(torch.optim.RMSprop, {"lr": 0.01, "momentum": 0.9}),
    Base(torch.optim.Adagrad, {"lr": 0.1}),
    Base(torch.optim.Adadelta, {"lr": 1.0}),
    Base(torch.optim.NAdam, {"lr": 0.01}),
    Base(torch.optim.RAdam, {"lr": 0.01}),
    Base(torch.optim.Adamax, {"lr": 0.01}),
    Base(torch.optim.Rprop, {"lr": 0.01}),
    Base(torch.optim.ASGD, {"lr": 0.01}),
]
OTHERS = [
    Base(lion_pytorch.Lion, {"lr": 1e-3}),
    Base(pytorch_optimizer.AdaBelief, {"lr": 1e-3}),
    Base(pytorch_optimizer.Tiger, {"lr": 1e-3}),
    Base(mrreg.LangevinSGD, {"lr": 0.1, "momentum": 0.9, "temperature": 0.01}),
    Base(mrreg.LangevinSGD, {"lr": 0.1, "temperature": 0.01}),
]


def network(dtype: torch.dtype = torch.float32) -> Net:
    """The same one at every call."""
    generator = torch.Generator().manual_seed(0)
    net = Net().to(dtype)
    for p in net.parameters():
        p.data = torch.randn(p.shape, generator=generator).to(dtype) / 2
    return net


def loss(net: nn.Module, t: int) -> Tensor:
    """The loss of batch t, in the precision of the network."""
    generator = torch.Generator().manual_seed(t)
    dtype = next(net.parameters()).dtype
    x, y = torch.randn(16, 4, generator=generator), torch.randn(16, 2, generator=generator)
    out: Tensor = net(x.to(dtype))
    return (out - y.to(dtype)).square().mean()


def train(
    net: nn.Module, optimizer: Optimizer, steps: Iterable[int], after: Callable[[], object] | None = None
) -> None:
    """The loop of a user; `after` runs at the end of every step."""
    for t in steps:
        torch.autograd.backward(loss(net, t))
        optimizer.step()
        optimizer.zero_grad()
        if after is not None:
            after()


def same(a: nn.Module, b: nn.Module) -> bool:
    """Tell if all parameters agree bit for bit, and so do their flags."""
    pairs = zip(a.parameters(), b.parameters(), strict=True)
    return all(torch.equal(p, q) and p.requires_grad == q.requires_grad for p, q in pairs)


def sgd(net: Net, k: int = 3, **options: Any) -> mrreg.MultirateSGD:
    """The head fast, the trunk slow."""
    return mrreg.MultirateSGD(net, lr=0.1, k=k, fast=net.head, **{"momentum": 0.9, **options})


def adamw(net: Net, k: int = 3, **options: Any) -> mrreg.MultirateAdamW:
    """As `sgd`."""
    return mrreg.MultirateAdamW(net, lr=0.01, k=k, fast=net.head, **options)


def hybrid(net: Net) -> mrreg.Multirate:
    """AdamW fast, SGD slow, RMSprop slower."""
    return mrreg.Multirate(
        [
            (torch.optim.AdamW(net.head.parameters(), lr=0.01), 1),
            (torch.optim.SGD([net.trunk.weight], lr=0.1, momentum=0.9), 2),
            (torch.optim.RMSprop([net.trunk.bias], lr=0.01), 4),
        ],
        model=net,
    )


def mixed(base: Base, drift: bool = True, gradient: str = "sync") -> Make:
    """One base in three parts of periods 1, 2 and 4."""

    def make(net: Net) -> Optimizer:
        params: tuple[Iterable[Tensor], ...] = (net.head.parameters(), [net.trunk.weight], [net.trunk.bias])
        return mrreg.Multirate(
            [(base(part), k) for part, k in zip(params, (1, 2, 4), strict=True)],
            drift=drift,
            gradient=gradient,
            model=net,
        )

    return make


def clock(optimizer: Optimizer) -> int:
    """Completed steps; all groups must agree."""
    (steps,) = {group["clock"] for group in optimizer.param_groups}
    return int(steps)
