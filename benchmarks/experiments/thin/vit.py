"""A small vision transformer on few images of CIFAR-10."""

from dataclasses import dataclass

import torch

from benchmarks.experiments.regularizers import Regularizers, Tried
from benchmarks.experiments.thin.draws import SIZE, Draw, images
from benchmarks.experiments.thin.networks import VisionTransformer


@dataclass(frozen=True)
class Config:
    """How many images and how long; `seeds` are those of the comparison."""

    seeds: int
    steps: int
    draw: Draw
    points: int = 5
    width: int = 128
    heads: int = 4
    layers: int = 2
    timings: int = 8


STUDY = Regularizers(
    "regularizers-vit",
    {
        "smoke": Config(2, 4, Draw(40, 160, 50, 50, 20), 2, 8, 4, 1, timings=1),
        "cpu": Config(5, 200, Draw(1000)),
        "gpu": Config(10, 10_000, Draw(15_000, validation=5000, test=None), 20, 256, 8, 6),
    },
    lambda config: f"CIFAR-10, {config.draw.images:,} images, vision transformer",
    network=lambda config, method, _: VisionTransformer(
        config.width, config.heads, config.layers, method.of("dropout"), method.of("depth")
    ),
    example=lambda config, _: torch.rand(2, 3, SIZE, SIZE),
    loop=lambda config, *training: images(config.draw, *training),
    tried=Tried(
        (3e-4, 1e-3, 2e-3, 4e-3),
        (0.1, 1.0),
        (0.1, 0.2),
        ((("hidden", 0.5), ("heads", 0.25)), (("hidden", 0.25), ("heads", 0.0))),
        (0.1, 0.3),
        quarter=True,
    ),
    note="2 layers of width 128 with 4 heads on patches of 4 x 4 of images at 16 x 16 (`gpu`: 6 of 256 with 8), 1,000 "
    "training images drawn for each seed (`gpu`: 15,000), batch 50, no augmentation, AdamW. Validation is on 1,000 "
    "other images.",
    data="CIFAR-10",
)
BENCHMARK = STUDY.benchmark()
NOTE = "As for 1,000 images, for a little more than three epochs."
BENCHMARK_MORE = STUDY.with_more("regularizers-vit-14000", Config(3, 900, Draw(14_000), 6), NOTE).benchmark()
