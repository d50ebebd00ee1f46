"""Put the biases on a slow time scale while a small network learns to tell the two arms of a spiral apart.

Nothing is saved, since biases cost next to nothing; what changes is where long training ends: in the paper, after
80,000 steps on four turns, well above SGD. `python -m benchmarks spiral` repeats that; this takes a few seconds.
"""

import torch
from torch import Tensor, nn

from mrreg import MultirateSGD, biases


def spiral(count: int, turns: float) -> tuple[Tensor, Tensor]:
    """Points on two intertwined arms, and the arm of each."""
    radius = torch.rand(count, 1).sqrt()
    angle = 2 * torch.pi * turns * radius
    arm = torch.arange(count)[:, None] % 2
    points = 2 * radius * torch.cat([angle.cos(), angle.sin()], 1) * (1 - 2 * arm)
    return points + 0.02 * torch.randn(count, 2), arm.float()


def train(optimizer: torch.optim.Optimizer, model: nn.Module, x: Tensor, y: Tensor, steps: int) -> None:
    criterion = nn.BCEWithLogitsLoss()
    for step in range(steps):
        batch = torch.arange(step * 25, step * 25 + 25) % len(x)
        criterion(model(x[batch]), y[batch]).backward()
        optimizer.step()
        optimizer.zero_grad()


def main(steps: int = 5_000) -> None:
    torch.manual_seed(0)
    (x, y), (test_x, test_y) = spiral(500, turns=2), spiral(1000, turns=2)
    model = nn.Sequential(nn.Linear(2, 100), nn.ReLU(), nn.Linear(100, 1))
    slow = biases(model)  # biases(model, layers="0"): those of the first layer only
    optimizer = MultirateSGD(slow, lr=0.2, k=5, model=model)
    train(optimizer, model, x, y, steps)
    right = 100 * ((model(test_x) > 0) == test_y).float().mean().item()
    print(f"{right:.1f} % of the test points right after {steps} steps with slow biases")


if __name__ == "__main__":
    main()
