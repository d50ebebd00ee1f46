"""A small vision transformer on few images of CIFAR-10.

The learning rate falls to zero at the end of a training, so that equal steps and equal seconds are two trainings.
"""

from dataclasses import dataclass

import torch

from benchmarks.experiments.regularizers import BOOST_1, DECAY, DEPTH, DROPOUT, FEW, THIN, Regularizers, Setting
from benchmarks.experiments.thin.draws import SIZE, Draw, images
from benchmarks.experiments.thin.networks import VisionTransformer


@dataclass(frozen=True)
class Config:
    """How many images and how long; `seeds` are those of the comparison."""

    seeds: int
    steps: int
    draw: Draw
    width: int = 128
    heads: int = 4
    layers: int = 2
    lr: float = 1e-3
    timings: int = 5
    methods: tuple[str, ...] = FEW


EVERY = (*FEW, DEPTH, DECAY, BOOST_1)
BENCHMARK = Regularizers(
    "thin-vit",
    {
        "smoke": Config(2, 4, Draw(40, 160, 50, 50, 20), 8, 4, 1, timings=1),
        "cpu": Config(8, 500, Draw(1000)),
        "gpu": Config(10, 10_000, Draw(5000, validation=5000, test=None), 256, 8, 6, timings=10, methods=EVERY),
    },
    lambda config: [
        Setting((config.steps,), config.methods, task=f"CIFAR-10, {config.draw.images:,} images, vision transformer",
                title="Vision transformer on few images of CIFAR-10"),
    ],
    network=lambda config, method, _: VisionTransformer(
        config.width, config.heads, config.layers, method.of("dropout"), method.of("depth")
    ),
    example=lambda config: torch.rand(2, 3, SIZE, SIZE),
    shares=lambda method, _: {"hidden": method.p, "heads": method.heads},
    optimizer=lambda config, model, decay: torch.optim.AdamW(
        model.parameters(), config.lr, **{"weight_decay": 0.01, **decay}
    ),
    loop=lambda config, *training: images(config.draw, *training),
    grid={
        DROPOUT: [{"p": 0.1}, {"p": 0.2}],
        THIN: [{"p": 0.25, "heads": 0.25}, {"p": 0.5, "heads": 0.25}],
        DEPTH: [{"p": 0.1}, {"p": 0.3}],
        DECAY: [{"weight_decay": 0.1}, {"weight_decay": 1.0}],
    },
    note="2 layers of width 128 with 4 heads on patches of 4 x 4 of images at 16 x 16 (`gpu`: 6 of 256 with 8), 1,000 "
    "training images drawn for each seed (`gpu`: 5,000), no augmentation, AdamW, cosine schedule. Two values each "
    "of what a method has are tried on validation images at equal seconds. Accuracy at the end of each training.",
    data="CIFAR-10",
    scheduled=True,
).benchmark()  # fmt: skip
