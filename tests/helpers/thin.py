"""Small thin models for the tests, with groups made by hand, and their training."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

import mrreg
from helpers.thin_oracle import Make, loss_of
from mrreg.masks.groups import Kind, Role, Slot, UnitGroup
from mrreg.masks.install import install
from mrreg.masks.mask import Mask, find_mask

TOLERANCE: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-9}
MOMENTUM: Make = partial(SGD, lr=0.1, momentum=0.9, weight_decay=0.01)
ADAM: Make = partial(AdamW, lr=0.01, eps=0.01)


def group(name: str, units: int, kept: int, kind: Kind = "hidden", **slots: list[tuple[str, int]]) -> UnitGroup:
    """A group whose units have one entry each along every slot: producer=[(name, dim)], member=…, consumer=…."""
    each = torch.arange(units)[:, None]
    roles: list[Role] = ["producer", "member", "consumer"]
    return UnitGroup(
        name, kind, units, kept, tuple(Slot(n, dim, each, role) for role in roles for n, dim in slots.get(role, []))
    )


def net(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """Three layers with BatchNorm after the first."""
    torch.manual_seed(0)
    first = [nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU()]
    return nn.Sequential(*first, nn.Linear(8, 10), nn.Tanh(), nn.Linear(10, 3)).to(dtype)


class Watched(nn.Sequential):
    """Calls a function in the middle of its forward."""

    inside: Callable[[], None] = staticmethod(lambda: None)

    def forward(self, x: Tensor) -> Tensor:
        for place, layer in enumerate(self):
            x = layer(x)
            if place == 3:
                self.inside()
        return x


BATCH_NORM = [("1.weight", 0), ("1.bias", 0), ("1.running_mean", 0), ("1.running_var", 0)]
GROUPS = (
    group("0", 8, 4, producer=[("0.weight", 0), ("0.bias", 0)], member=BATCH_NORM, consumer=[("3.weight", 1)]),
    group("3", 10, 5, producer=[("3.weight", 0), ("3.bias", 0)], consumer=[("5.weight", 1)]),
)


def thin_net(dtype: torch.dtype = torch.float64, **options: Any) -> nn.Sequential:
    """The same, thin, with cycles of three steps."""
    return install(net(dtype), GROUPS, **{"k": 3, "boost": 3, **options})


def attached(make: Make = ADAM, **options: Any) -> tuple[nn.Sequential, Optimizer]:
    """The same, with an optimizer that drives it."""
    model = thin_net(**options)
    optimizer = make(model.parameters())
    mrreg.attach(optimizer, model)
    return model, optimizer


def train(model: nn.Module, optimizer: Optimizer, steps: Iterable[int]) -> None:
    """Train on the batches of some steps."""
    for t in steps:
        optimizer.zero_grad()
        loss_of(model(batch(t))).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def same(model: nn.Module, other: nn.Module, **tolerance: Any) -> None:
    """Everything that two models save agrees."""
    torch.testing.assert_close(dict(model.state_dict()), dict(other.state_dict()), **(tolerance or TOLERANCE))


def mask_of(model: nn.Module) -> Mask:
    """The mask of a thin model."""
    mask = find_mask(model)
    assert mask is not None
    return mask


def batch(t: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """The input of step t."""
    return torch.randn(7, 6, generator=torch.Generator().manual_seed(t)).to(dtype)
