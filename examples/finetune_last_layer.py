"""Fine-tune a pretrained network: the new head at every step, everything below it at every fifth.

The loop is the ordinary one. Between sync steps autograd stops below the head: nothing there asks for a gradient.
"""

import copy
import time

import torch
from torch import Tensor, nn

from mrreg import MultirateSGD


def make_task(shift: float) -> tuple[Tensor, Tensor]:
    """Ten noisy clusters; the shift moves them, so that a second task is like the first but not the same."""
    generator = torch.Generator().manual_seed(0)
    centers = torch.randn(10, 64, generator=generator) + shift * torch.randn(10, 64, generator=generator)
    y = torch.randint(10, (4096,), generator=generator)
    return centers[y] + 2 * torch.randn(4096, 64, generator=generator), y


def train(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, steps: int) -> float:
    """Train, and return the seconds that the steps take."""
    criterion = nn.CrossEntropyLoss()
    begin = time.perf_counter()
    for step in range(steps):
        batch = torch.arange(step * 64, step * 64 + 64) % len(y)
        criterion(model(x[batch]), y[batch]).backward()
        optimizer.step()
        optimizer.zero_grad()
    return time.perf_counter() - begin


def main(steps: int = 150) -> None:
    torch.manual_seed(0)
    body = [layer for width in (64, *[256] * 5) for layer in (nn.Linear(width, 256), nn.ReLU())]
    model = nn.Sequential(*body, nn.Linear(256, 10))
    train(model, torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9), *make_task(0), steps)  # pretraining

    model[-1] = nn.Linear(256, 10)
    full, multirate = model, copy.deepcopy(model)
    x, y = make_task(1)
    full_seconds = train(full, torch.optim.SGD(full.parameters(), lr=0.01, momentum=0.9), x, y, steps)
    optimizer = MultirateSGD(multirate, lr=0.01, k=5, fast=multirate[-1], momentum=0.9)
    seconds = train(multirate, optimizer, x, y, steps)

    right = [100 * (net(x).argmax(1) == y).float().mean().item() for net in (full, multirate)]
    print(f"full {right[0]:.1f} %, multirate {right[1]:.1f} % right, {full_seconds / seconds:.2f} times as fast")


if __name__ == "__main__":
    main()
