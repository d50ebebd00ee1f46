"""The two spirals, and many small networks trained on them at once.

A step on one 2-100-1 network costs mostly dispatch, so the networks of all seeds are stacked along a first dimension:
one batched product a layer, one optimizer over the stacked tensors. The loss is the sum over seeds of each seed's
mean, so every network gets exactly the gradient that it would get alone.
"""

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.core.stacked import StackedLinear
from benchmarks.core.training import percent_right

TURNS, RADIUS, POWER, NOISE = 4, 2.0, 0.5, 0.02
WIDTH, BATCH = 100, 25

DATA_STREAM = 10_000  # added to a seed, so that data and initial weights do not come from the same random numbers


def spirals(points: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw noisy points of two interleaved spirals, the second the negative of the first; (N, 2) and labels (N,).

    Half of the points each, at a t^p (cos 2 pi n t^p, sin 2 pi n t^p) with t uniform on [0, 1).
    """
    label = (torch.arange(points) >= points // 2).float()
    t = torch.rand(points, generator=generator) ** POWER
    angle = 2 * math.pi * TURNS * t
    curve = RADIUS * t * (1 - 2 * label) * torch.stack([angle.cos(), angle.sin()])
    return curve.mT + NOISE * torch.randn(points, 2, generator=generator), label


def network(seed: int, width: int = WIDTH) -> nn.Sequential:
    """The plain 2-100-1 network with torch's initial weights for one seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, 1))


class Networks(nn.Module):
    """The networks of all seeds; layer names `hidden` and `output`."""

    def __init__(self, seeds: Sequence[int], width: int = WIDTH) -> None:
        super().__init__()
        plain = [network(seed, width) for seed in seeds]
        self.hidden = StackedLinear([net[0] for net in plain])  # type: ignore[misc]
        self.output = StackedLinear([net[2] for net in plain])  # type: ignore[misc]

    def forward(self, x: Tensor) -> Tensor:  # (S, N, 2) -> (S, N)
        """Logits."""
        logits: Tensor = self.output(self.hidden(x).relu())
        return logits.squeeze(2)


class Data:
    """Training and test points of every seed, and the order in which each seed's training points come."""

    def __init__(self, seeds: Sequence[int], train: int, test: int, device: torch.device) -> None:
        self.generators = [torch.Generator().manual_seed(DATA_STREAM + seed) for seed in seeds]
        drawn = [(*spirals(train, g), *spirals(test, g)) for g in self.generators]
        stacked = [torch.stack(part).to(device) for part in zip(*drawn, strict=True)]
        self.x, self.y, self.test_x, self.test_y = stacked

    def epochs(self, count: int) -> Iterator[list[tuple[Tensor, Tensor]]]:
        """Yield the mini-batches of each epoch: every seed in its own new order, a short last batch left out."""
        seeds, size = self.y.shape
        whole = size // BATCH * BATCH
        for _ in range(count):
            order = torch.stack([torch.randperm(size, generator=g) for g in self.generators])[:, :whole]
            order = order.to(self.x.device)
            x = self.x.take_along_dim(order.unsqueeze(2), 1).reshape(seeds, -1, BATCH, 2)
            y = self.y.take_along_dim(order, 1).reshape(seeds, -1, BATCH)
            yield list(zip(x.unbind(1), y.unbind(1), strict=True))


def loss(logits: Tensor, labels: Tensor) -> Tensor:
    """The sum over seeds of each seed's mean binary cross-entropy."""
    return F.binary_cross_entropy_with_logits(logits, labels, reduction="sum") / labels.shape[1]


def accuracy(networks: nn.Module, x: Tensor, y: Tensor) -> list[float]:
    """Percent of the points on the right side, one figure a seed."""
    shares = percent_right(networks, [(x, y)], decide=lambda logits: (logits > 0).to(y))
    return [round(share, 3) for share in shares.tolist()]


def train(
    networks: Networks,
    optimizer: torch.optim.Optimizer,
    data: Data,
    epochs: int,
    watch: Callable[[int], None],
) -> None:
    """The ordinary training loop, with `watch(epoch)` called after every epoch."""
    for epoch, batches in enumerate(data.epochs(epochs), 1):
        for x, y in batches:
            optimizer.zero_grad()
            loss(networks(x), y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        watch(epoch)
