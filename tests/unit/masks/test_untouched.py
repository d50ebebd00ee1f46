"""What a masked step does not gather, or fill with zeros, again: nobody has touched it; all else is renewed."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.thin import mask_of
from torch import Tensor, nn

import mrreg
from mrreg.masks.entries import ReusableBuffer, Unwritten

OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.001, momentum=0.9),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
}


def scaled(model: Any, optimizer: Any, t: int) -> None:
    for state in optimizer.state.values():
        for value in state.values():
            if value.dim() and t % 3 == 0:
                value.mul_(0.9)


def cycle_is_longer(model: Any, optimizer: Any, t: int) -> None:
    if t == 4:  # the cycle goes on, with the same units, after a joint step that fused kernels hide from versions
        mask_of(model).k = 10


def loaded(model: Any, optimizer: Any, t: int) -> None:
    if t % 4 == 1:
        optimizer.load_state_dict(optimizer.state_dict())


def noise_on_gradients(model: Any, optimizer: Any, t: int) -> None:
    for p in model.parameters():
        if p.grad is not None:
            p.grad.add_(0.1)


def another_memory(model: Any, optimizer: Any, t: int) -> None:
    for p in model.parameters():
        p.data = p.data.clone()
    for state in optimizer.state.values():
        for value in state.values():
            if value.dim() and t % 2:
                value.data = value * 0.5


INTERFERE = [scaled, cycle_is_longer, loaded, noise_on_gradients, another_memory, lambda *_: None]
PARTS = [(1, True), (2, True), (2, False)]  # forwards per step, and how gradients are cleared


def trained(make: Callable[[Any], Any], interfere: Any, parts: int, to_none: bool) -> list[Tensor]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))
    model, _ = mrreg.thin(net, p=0.5, k=5, example_inputs=torch.randn(2, 6))
    optimizer = make(model.parameters())
    mrreg.attach(optimizer, model)
    found = []
    for t in range(11):
        for part in range(parts):
            x = torch.randn(4, 6, generator=torch.Generator().manual_seed(10 * t + part))
            model(x).square().mean().backward()
        found += [p.grad.norm() for p in model.parameters() if p.grad is not None]
        interfere(model, optimizer, t)
        optimizer.step()
        optimizer.zero_grad(set_to_none=to_none)
    return [*found, *model.parameters(), *(v for s in optimizer.state.values() for v in s.values())]


def spread(self: ReusableBuffer, small: Tensor, entries: Any, value: Tensor) -> Tensor:
    whole = torch.zeros_like(value, requires_grad=False)
    entries.put(small, whole)
    return whole


@pytest.mark.parametrize(
    ("optimizer", "interfere", "parts", "to_none"),
    [
        (name, each, *PARTS[(i + j) % 3])
        for i, name in enumerate(OPTIMIZERS)
        for j, each in enumerate(INTERFERE)
        if (i + j) % 2
    ],
)
def test_training_is_that_with_everything_gathered(
    optimizer: str, interfere: Any, parts: int, to_none: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = trained(OPTIMIZERS[optimizer], interfere, parts, to_none)
    monkeypatch.setattr(Unwritten, "__call__", lambda *_: False)
    monkeypatch.setattr(ReusableBuffer, "spread", spread)
    expected = trained(OPTIMIZERS[optimizer], interfere, parts, to_none)
    assert all(one.isfinite().all() for one in ours)
    assert all(torch.equal(one, two) for one, two in zip(ours, expected, strict=True))
