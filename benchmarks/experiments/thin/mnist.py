"""A wide MLP on 1,000 images of MNIST, each seed's own; the demo trains it on the digits of scikit-learn."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from benchmarks.core.comparison import Job
from benchmarks.core.training import Batch, Batches, Loop, shuffled
from benchmarks.data import mnist
from benchmarks.experiments.regularizers import Regularizers, Tried
from benchmarks.experiments.thin.mlp import PAIRS, network, shares

ORDER_STREAM = 10_000  # added to a seed, so that the order of the images is not tied to the choice of them
CHUNK = 2500  # images evaluated at once


@dataclass(frozen=True)
class Config:
    """What is spent."""

    seeds: int
    images: int
    steps: int
    points: int = 5
    batch: int = 100
    width: int = 1000
    validation: int = 5000
    timings: int = 8
    wrong: float = 0.0  # share of wrong labels among those that are trained on
    data: Literal["mnist", "digits"] = "mnist"


PRESETS = {
    "smoke": Config(2, 100, 4, 2, 25, 16, 200, 1, data="digits"),
    "cpu": Config(5, 1000, 600, 6),
    "gpu": Config(10, 5000, 5000, 10),
}


def loop(config: Config, model: nn.Module, optimizer: Optimizer, seed: int, job: Job) -> Loop:
    digits = replace(mnist.load(config.data, job.data_dir).to(job.device), draw=config.images)
    train, validation = digits.without_last(config.validation), digits.validation(config.validation)
    y = mislabelled(train.y, config.wrong)
    chosen = train.examples(seed).to(job.device)
    batches = Batches(
        shuffled(len(chosen), config.batch),
        lambda index: (train.x[chosen[index]], y[chosen[index]]),
        torch.Generator().manual_seed(ORDER_STREAM + seed),
    )
    return Loop(model, optimizer, batches, {"validation": lambda: parts(validation), "test": lambda: parts(digits)})


def mislabelled(y: Tensor, share: float) -> Tensor:
    """Return labels, a share of which are those of another class, always the same ones."""
    if not share:
        return y
    generator = torch.Generator().manual_seed(0)
    wrong = torch.rand(len(y), generator=generator) < share
    other = torch.randint(1, mnist.CLASSES, (len(y),), generator=generator)
    return (y + (wrong * other).to(y.device)) % mnist.CLASSES


def parts(digits: mnist.Digits) -> Iterator[Batch]:
    yield from digits.held_out(CHUNK)


def pixels(config: Config) -> int:
    return 784 if config.data == "mnist" else 64


STUDY = Regularizers(
    "regularizers-digits",
    PRESETS,
    lambda config: f"{mnist.NAMES[config.data]}, {config.images:,} images, MLP",
    network=lambda config, method, _: network(method, (pixels(config), config.width, mnist.CLASSES)),
    example=lambda config, _: torch.rand(2, pixels(config)),
    loop=loop,
    tried=Tried((3e-4, 1e-3, 3e-3, 1e-2), (0.1, 1.0), PAIRS, (shares(0.2, 0.5), shares(0.5, 0.25)), quarter=True),
    note="Two hidden layers of 1,000, batch 100, AdamW. Validation is on 5,000 other training images.",
    data="MNIST",
)
BENCHMARK = STUDY.benchmark()
