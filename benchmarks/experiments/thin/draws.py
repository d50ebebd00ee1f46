"""Training on few examples, which each seed draws for itself: images of CIFAR-10, rows of a table."""

from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import Optimizer

from benchmarks.core.comparison import Job
from benchmarks.core.training import Loop, drawn_batches
from benchmarks.data.cifar import cifar10, normal
from benchmarks.data.images import Images

CHUNK = 500  # examples evaluated at once
ORDER_STREAM = 10_000  # added to a seed, so that the order of the examples is not tied to the choice of them


def drawn(
    data: Images, sizes: tuple[int, int, int], model: nn.Module, optimizer: Optimizer, seed: int, job: Job
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
    data = data.to(job.device)
    count, validation, batch = sizes
    train = data.without_last(validation).drawn(count, torch.Generator().manual_seed(seed))
    batches = drawn_batches(train.x, train.y, batch, torch.Generator().manual_seed(ORDER_STREAM + seed))
    splits = {"validation": partial(data.validation(validation).held_out, CHUNK), "test": partial(data.held_out, CHUNK)}
    return Loop(model, optimizer, batches, splits)


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
def pixels(folder: Path | None, of: int | None, test: int | None) -> Images:
    """Return images, (n, 3, 16, 16), to train on and to test on."""
    found = cifar10(folder, of, test)
    x, test_x = (F.avg_pool2d(normal(each), 2) for each in (found.x, found.test_x))
    return replace(found, x=x, test_x=test_x)


def images(draw: Draw, model: nn.Module, optimizer: Optimizer, seed: int, job: Job) -> Loop:
    """Return the training on images of CIFAR-10 drawn by the seed."""
    sizes = (draw.images, draw.validation, draw.batch)
    return drawn(pixels(job.data_dir, draw.of, draw.test), sizes, model, optimizer, seed, job)
