"""Training on few examples, which each seed draws for itself: images of CIFAR-10, rows of a table."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from benchmarks.core.comparison import Job
from benchmarks.core.training import Batch, Batches, Loop, shuffled
from benchmarks.data.cifar import cifar10, normal

CHUNK = 500  # examples evaluated at once
ORDER_STREAM = 10_000  # added to a seed, so that the order of the examples is not tied to the choice of them
Parts = tuple[Tensor, Tensor, Tensor, Tensor]
"""Examples and labels to train on, and to test on."""


def drawn(
    data: Parts, sizes: tuple[int, int, int], model: nn.Module, optimizer: Optimizer, seed: int, job: Job
) -> Loop:
    """Return the training on examples drawn by the seed; the last ones of all are for validation.

    Args:
        data: All examples.
        sizes: How many are drawn, are for validation, are in a batch.
        model: What is trained.
        optimizer: Its optimizer.
        seed: Of the draw and the order.
        job: Where to train.
    """
    x, y, test_x, test_y = (part.to(job.device) for part in data)
    count, validation, batch = sizes
    rest = len(y) - validation
    chosen = torch.randperm(rest, generator=torch.Generator().manual_seed(seed))[:count].to(job.device)
    batches = Batches(
        shuffled(len(chosen), batch, short=False),
        lambda index: (x[chosen[index]], y[chosen[index]]),
        torch.Generator().manual_seed(ORDER_STREAM + seed),
    )
    splits = {"validation": lambda: parts(x[rest:], y[rest:]), "test": lambda: parts(test_x, test_y)}
    return Loop(model, optimizer, batches, splits)


def parts(x: Tensor, y: Tensor) -> Iterator[Batch]:
    yield from zip(x.split(CHUNK), y.split(CHUNK), strict=True)  # type: ignore[no-untyped-call]


SIZE, CLASSES = 16, 10  # images of CIFAR-10 at half their size


@dataclass(frozen=True)
class Draw:
    """How many images to train on, of how many (None: all), and how many to judge by."""

    images: int
    of: int | None = None
    validation: int = 1000
    test: int | None = 3000
    batch: int = 50


@cache
def pixels(folder: Path | None, of: int | None, test: int | None) -> Parts:
    """Return images, (n, 3, 16, 16), and labels to train on and to test on."""
    found = cifar10(folder, of, test)
    x, test_x = (F.avg_pool2d(normal(each), 2) for each in (found.x, found.test_x))
    return x, found.y, test_x, found.test_y


def images(draw: Draw, model: nn.Module, optimizer: Optimizer, seed: int, job: Job) -> Loop:
    """Return the training on images of CIFAR-10 drawn by the seed."""
    sizes = (draw.images, draw.validation, draw.batch)
    return drawn(pixels(job.data_dir, draw.of, draw.test), sizes, model, optimizer, seed, job)
