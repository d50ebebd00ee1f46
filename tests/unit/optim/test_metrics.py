"""The numbers that `Multirate.metrics` gives to a logger."""

import pytest
import torch
from helpers.optimizers import Net

import mrreg


def step(model: Net, optimizer: torch.optim.Optimizer) -> None:
    model(torch.randn(3, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def test_numbers_follow_the_clock() -> None:
    model = Net()
    optimizer = mrreg.MultirateSGD(model, lr=0.1, k=3, fast=model.head.parameters(), momentum=0.9)
    seen = []
    for _ in range(4):
        seen.append(optimizer.metrics())
        step(model, optimizer)
    assert [m["multirate/step"] for m in seen] == [0, 1, 2, 3]
    assert [m["multirate/part0/due"] for m in seen] == [1, 1, 1, 1]
    assert [m["multirate/part1/due"] for m in seen] == [1, 0, 0, 1]
    assert [m["multirate/part1/phase"] for m in seen] == [0, 1, 2, 0]
    assert [m["multirate/due_share"] for m in seen] == pytest.approx([1, 18 / 58, 18 / 58, 1])
    assert seen[0]["multirate/part1/drift_norm"] == 0
    assert seen[0]["multirate/part1/period"] == 3
    assert "multirate/part0/drift_norm" not in seen[0]
    assert all(isinstance(value, (int, float)) for m in seen for value in m.values())


@pytest.mark.parametrize("slow_lr", ["coupled", "per_gradient", 0.01])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_drift_norm_is_what_the_next_step_moves(momentum: float, slow_lr: str | float) -> None:
    model = Net()
    fast = model.head.parameters()
    optimizer = mrreg.MultirateSGD(model, lr=0.1, k=3, fast=fast, momentum=momentum, slow_lr=slow_lr)
    step(model, optimizer)
    told = optimizer.metrics()["multirate/part1/drift_norm"]
    before = torch.cat([p.detach().flatten().clone() for p in model.trunk.parameters()])
    step(model, optimizer)
    after = torch.cat([p.detach().flatten() for p in model.trunk.parameters()])
    assert told == pytest.approx((after - before).norm().item(), rel=1e-5)
    assert told > 0


def test_without_drift_there_is_no_norm() -> None:
    model = Net()
    optimizer = mrreg.MultirateSGD(model, lr=0.1, k=3, fast=model.head.parameters(), drift=False)
    step(model, optimizer)
    assert not [key for key in optimizer.metrics() if "norm" in key]
