"""Few images of CIFAR-10 at half their size, and a training on a seed's own draw of them."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from torch import nn
from torch.nn import functional as F
from torch.optim import Optimizer

from benchmarks.core.comparison import Job
from benchmarks.core.training import Loop
from benchmarks.data.cifar import cifar10, normal
from benchmarks.experiments.thin.draws import Parts, drawn

SIZE, CLASSES = 16, 10


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


def loop(draw: Draw, model: nn.Module, optimizer: Optimizer, seed: int, job: Job) -> Loop:
    """Return the training on images drawn by the seed."""
    sizes = (draw.images, draw.validation, draw.batch)
    return drawn(pixels(job.data_dir, draw.of, draw.test), sizes, model, optimizer, seed, job)
