"""Ask before training what a fast part would save, and train with the answer.

A small convolutional network is to be fine-tuned; the audit measures a few steps and leaves the network as it was.
"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import mrreg


def network() -> nn.Sequential:
    """Convolutions with BatchNorm, and a linear layer."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 16), (16, 32), (32, 32)):
        layers += [nn.Conv2d(inputs, outputs, 3, stride=2), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * 9, 4))


def main(steps: int = 100) -> None:
    """Audit, choose, train."""
    torch.manual_seed(0)
    model = network()
    images, labels = torch.randn(32, 3, 32, 32), torch.randint(4, (32,))

    def loss_fn(scores: torch.Tensor) -> torch.Tensor:
        return cross_entropy(scores, labels)

    parts = (["10"], ["6", "7", "10"])  # the head, and the last convolution with it
    reports = [mrreg.audit(model, fast=part, example_inputs=images, loss_fn=loss_fn) for part in parts]
    print(reports[0])
    quick = [p for p, report in zip(parts, reports, strict=True) if report.speedup(5) > 0.9 * reports[0].speedup(5)]
    fast = quick[-1]  # the largest part that trains about as quickly
    optimizer = mrreg.MultirateSGD(model, lr=0.01, k=5, fast=fast, momentum=0.9)
    mrreg.batch_norm(optimizer, model, statistics="sync")
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_fn(model(images))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    print(f"loss {loss.item():.2f} after {steps} steps with {fast} fast")


if __name__ == "__main__":
    main()
