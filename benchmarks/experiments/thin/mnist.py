"""A wide MLP on 1,000 images of MNIST, each seed's own; the demo trains it on the digits of scikit-learn."""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from benchmarks.core.comparison import Job
from benchmarks.core.training import Loop
from benchmarks.data import mnist
from benchmarks.experiments.regularizers import Regularizers, Tried
from benchmarks.experiments.thin.draws import drawn
from benchmarks.experiments.thin.mlp import PAIRS, network, shares


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
    "cpu": Config(5, 1000, 1500, 10),
    "gpu": Config(10, 5000, 5000, 10),
}


def loop(config: Config, model: nn.Module, optimizer: Optimizer, seed: int, job: Job) -> Loop:
    digits = mnist.load(config.data, job.data_dir)
    rest = len(digits.y) - config.validation
    data = replace(digits, y=torch.cat([mislabelled(digits.y[:rest], config.wrong), digits.y[rest:]]))
    return drawn(data, (config.images, config.validation, config.batch), model, optimizer, seed, job)


def mislabelled(y: Tensor, share: float) -> Tensor:
    """Return labels, a share of which are those of another class, always the same ones."""
    generator = torch.Generator().manual_seed(0)
    wrong = torch.rand(len(y), generator=generator) < share
    other = torch.randint(1, mnist.CLASSES, (len(y),), generator=generator)
    return (y + wrong * other) % mnist.CLASSES


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
BENCHMARK_MORE = STUDY.with_more("regularizers-digits-5000", Config(5, 5000, 1500, 6), STUDY.note).benchmark()
NOTE = "As for fewer digits, on all that do not validate, batch 500."
BENCHMARK_ALL = STUDY.with_more("regularizers-digits-all", Config(3, 55_000, 1100, 10, 500), NOTE).benchmark()
