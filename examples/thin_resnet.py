"""Train random halves of a small ResNet: half of its blocks' inner channels at four of five steps, all at the fifth.

The statistics of BatchNorm go with the channels: those of absent ones rest. The data are scikit-learn's digits.
"""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import mrreg


class Block(nn.Module):
    """Two convolutions beside a residual sum."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.norm1, self.norm2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, channels, height, width) to the same shape."""
        return torch.relu(x + self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x))))))


def digits() -> tuple[Tensor, Tensor]:
    """1797 images of 8 x 8 pixels in a random order, and their classes."""
    data = load_digits()
    order = torch.randperm(len(data.target))
    return torch.tensor(data.images, dtype=torch.float32)[order, None] / 16, torch.tensor(data.target)[order]


def main(steps: int = 300) -> None:
    """Make the model thin, train it, take the plain one back."""
    torch.manual_seed(0)
    images, labels = digits()
    blocks = [Block(32), Block(32), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 10)]
    model = nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), *blocks)
    model, report = mrreg.thin(model, p=0.5, k=5, example_inputs=images[:2])
    print(report)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    mrreg.attach(optimizer, model)
    for _ in range(steps):
        batch = torch.randint(500, (50,))  # the first 500 images train, the others test
        loss = cross_entropy(model(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        scheduler.step()
    plain = mrreg.unwrap(model).eval()
    with torch.no_grad():
        right = (plain(images[500:]).argmax(1) == labels[500:]).float().mean()
    print(f"{right:.1%} of new images right after {steps} steps, {report.cycle_share:.0%} of plain training's FLOPs")


if __name__ == "__main__":
    main()
