"""Training on few examples, which each seed draws for itself, with a schedule of the learning rate."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from benchmarks.core.comparison import Job
from benchmarks.core.training import Batch, Batches, Loop, shuffled

CHUNK = 250  # examples evaluated at once
ORDER_STREAM = 10_000  # added to a seed, so that the order of the examples is not tied to the choice of them
Parts = tuple[Tensor, Tensor, Tensor, Tensor]
"""Examples and labels to train on, and to test on."""


def drawn(
    data: Parts, sizes: tuple[int, int, int], model: nn.Module, optimizer: Optimizer, seed: int, job: Job
) -> Loop:
    """Return the training on examples drawn by the seed; the last ones of all are for validation.

    The learning rate rises for the first tenth of the steps and falls like a cosine after it. The split "drawn" has
    the examples that are trained on.

    Args:
        data: All examples.
        sizes: How many are drawn, are for validation, are in a batch.
        model: What is trained.
        optimizer: Its optimizer, at the largest learning rate.
        seed: Of the draw and the order.
        job: How long, and where.
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
    rates = [group["lr"] for group in optimizer.param_groups]

    def scheduled(step: int) -> None:
        warm = job.steps / 10
        factor = min((step + 1) / warm, 0.5 + 0.5 * math.cos(math.pi * max(0.0, step - warm) / (job.steps - warm)))
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * factor

    splits = {
        "drawn": lambda: parts(x[chosen], y[chosen]),
        "validation": lambda: parts(x[rest:], y[rest:]),
        "test": lambda: parts(test_x, test_y),
    }
    return Loop(model, optimizer, batches, splits, before=scheduled)


def parts(x: Tensor, y: Tensor) -> Iterator[Batch]:
    """Yield the examples to evaluate on, some at a time."""
    yield from zip(x.split(CHUNK), y.split(CHUNK), strict=True)  # type: ignore[no-untyped-call]
