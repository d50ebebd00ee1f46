"""A small ResNet and a plain CNN on few images of CIFAR-10: thin channels beside Dropout2d.

The learning rate falls to zero at the end of a training, so that equal steps and equal seconds are two trainings.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from benchmarks.core.comparison import Job
from benchmarks.experiments.regularizers import (
    BOOST_1,
    DECAY,
    DEPTH,
    DROPOUT,
    FEW,
    THIN,
    Method,
    Regularizers,
    Setting,
)
from benchmarks.experiments.thin.draws import SIZE, Draw, images
from benchmarks.experiments.thin.networks import cnn, resnet

Network = Literal["ResNet", "CNN"]
MOMENTUM, WEIGHT_DECAY = 0.9, 5e-4
HIDDEN = 0.5  # of the CNN's hidden units


@dataclass(frozen=True)
class Config:
    """How many images and how long; `seeds` are those of the comparison."""

    seeds: int
    steps: int
    draw: Draw
    width: int = 64
    blocks: int = 1
    networks: tuple[Network, ...] = ("ResNet", "CNN")
    methods: tuple[str, ...] = (*FEW, BOOST_1)
    lr: float = 0.05
    timings: int = 5


def network(config: Config, method: Method, job: Job) -> nn.Module:
    dropout, sizes = method.of("dropout"), (config.width, config.blocks)
    if job.setting == "CNN":
        return cnn(*sizes, dropout, HIDDEN if dropout else 0.0)
    return resnet(*sizes, dropout, method.of("depth"))


BENCHMARK = Regularizers(
    "thin-convolutions",
    {
        "smoke": Config(2, 4, Draw(40, 160, 50, 50, 20), 16, timings=1),
        "cpu": Config(5, 400, Draw(1000), networks=("ResNet",), timings=10),
        "gpu": Config(10, 10_000, Draw(5000, validation=5000, test=None), 128, 3,
                      methods=(*FEW, BOOST_1, DECAY, DEPTH), timings=10),
    },
    lambda config: [
        Setting((config.steps,), tuple(name for name in config.methods if name != DEPTH or which == "ResNet"), which,
                which, f"CIFAR-10, {config.draw.images:,} images, {which}", f"{which} on few images of CIFAR-10")
        for which in config.networks
    ],
    network=network,
    example=lambda config: torch.rand(2, 3, SIZE, SIZE),
    shares=lambda method, job: {"channels": method.p} | ({"hidden": HIDDEN} if job.setting == "CNN" else {}),
    optimizer=lambda config, model, decay: torch.optim.SGD(
        model.parameters(), config.lr, MOMENTUM, **{"weight_decay": WEIGHT_DECAY, **decay}
    ),
    loop=lambda config, *training: images(config.draw, *training),
    grid={
        DROPOUT: [{"p": 0.1}, {"p": 0.25}],
        THIN: [{"p": 0.125}, {"p": 0.25}],
        DECAY: [{"weight_decay": 2e-3}, {"weight_decay": 1e-2}],
        DEPTH: [{"p": 0.1}, {"p": 0.3}],
    },
    note="64 and 128 channels with BatchNorm (`gpu`: 128 and 256) on images at 16 x 16, 1,000 training images "
    "drawn for each seed (`gpu`: 5,000), no augmentation, SGD with momentum 0.9, lr 0.05, cosine schedule. Two "
    "values each of what a method has are tried on validation images at equal seconds. Accuracy at the end.",
    data="CIFAR-10",
    scheduled=True,
    trials=3,
).benchmark()  # fmt: skip
