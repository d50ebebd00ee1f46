"""Noise in the fast part alone: the head explores at a temperature while the trunk is trained as usual.

Predictions averaged along the way tell where the data ends: there the samples of the head disagree more.
"""

import torch
from torch import nn

from mrreg import LangevinSGD, Multirate


def main(steps: int = 3000) -> None:
    torch.manual_seed(0)
    x = torch.rand(128, 1) * 2 - 1
    y = (3 * x).sin() + 0.1 * torch.randn(128, 1)
    first, head = nn.Linear(1, 64), nn.Linear(64, 1)
    nn.init.normal_(first.weight, std=3)
    trunk = nn.Sequential(first, nn.Tanh())
    model = nn.Sequential(trunk, head)
    criterion = nn.MSELoss()
    optimizer = Multirate(
        [
            (LangevinSGD(head.parameters(), lr=0.02, momentum=0.5, temperature=1e-3, weight_decay=1e-3), 1),
            (torch.optim.SGD(trunk.parameters(), lr=0.01, momentum=0.9), 5),
        ],
        model=model,
    )
    points = torch.tensor([[0.0], [3.0]])
    samples = []
    for step in range(steps):
        criterion(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step >= steps // 2:
            with torch.no_grad():
                samples.append(model(points)[:, 0])

    inside, outside = torch.stack(samples).std(0, correction=0)
    print(f"spread of the predictions: {inside:.3f} inside the data, {outside:.3f} outside")


if __name__ == "__main__":
    main()
