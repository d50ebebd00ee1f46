"""A small ResNet on few images of CIFAR-10: thin channels beside Dropout2d."""

from dataclasses import dataclass

import torch

from benchmarks.experiments.regularizers import Regularizers, Tried
from benchmarks.experiments.thin.draws import SIZE, Draw, images
from benchmarks.experiments.thin.networks import resnet


@dataclass(frozen=True)
class Config:
    """How many images and how long; `seeds` are those of the comparison."""

    seeds: int
    steps: int
    draw: Draw
    points: int = 5
    width: int = 64
    blocks: int = 1
    timings: int = 8


STUDY = Regularizers(
    "regularizers-convolutions",
    {
        "smoke": Config(2, 4, Draw(40, 160, 50, 50, 20), 2, 16, timings=1),
        "cpu": Config(5, 150, Draw(1000)),
        "gpu": Config(10, 10_000, Draw(15_000, validation=5000, test=None), 20, 128, 3),
    },
    lambda config: f"CIFAR-10, {config.draw.images:,} images, ResNet",
    network=lambda config, method, _: resnet(config.width, config.blocks, method.of("dropout"), method.of("depth")),
    example=lambda config, _: torch.rand(2, 3, SIZE, SIZE),
    loop=lambda config, *training: images(config.draw, *training),
    tried=Tried(
        (0.01, 0.03, 0.1, 0.2),
        (5e-3, 2e-2),
        (0.1, 0.25),
        ((("channels", 0.25),), (("channels", 0.125),)),
        (0.1, 0.3),
    ),
    note="64 and 128 channels with BatchNorm (`gpu`: 128 and 256) on images at 16 x 16, 1,000 training images drawn "
    "for each seed (`gpu`: 15,000), batch 50, no augmentation, SGD with momentum 0.9. Validation is on 1,000 other "
    "images.",
    data="CIFAR-10",
    optimizer="momentum",
    decay=5e-4,
)
BENCHMARK = STUDY.benchmark()
NOTE = "As for 1,000 images, for a little more than three epochs."
BENCHMARK_MORE = STUDY.with_more("regularizers-convolutions-14000", Config(3, 900, Draw(14_000), 6), NOTE).benchmark()
