"""Handwritten digits as rows of pixels between 0 and 1: MNIST, or the small ones that come with scikit-learn."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from benchmarks.data.images import Images
from benchmarks.data.locate import locate

FILES = tuple(
    f"MNIST/raw/{part}-{what}" for part in ("train", "t10k") for what in ("images-idx3-ubyte", "labels-idx1-ubyte")
)
CLASSES = 10
IMAGES = {"mnist": 60_000, "digits": 1198}  # to train on
NAMES = {"mnist": "MNIST", "digits": "scikit-learn's digits"}


@dataclass(frozen=True)
class Digits(Images):
    """Training and test images, (n, pixels), with their labels; each seed trains on its own `draw` of the first."""

    draw: int | None = None

    def examples(self, seed: int) -> Tensor:
        """Return the training images that a seed uses, in random order: `draw` of them, or all."""
        return torch.randperm(len(self.y), generator=torch.Generator().manual_seed(seed))[: self.draw]


@cache
def load(name: Literal["mnist", "digits"], folder: Path | None) -> Digits:
    """The data set of that name; `folder` holds MNIST/raw, as torchvision lays it out."""
    return _mnist(folder) if name == "mnist" else _digits()


def _mnist(folder: Path | None) -> Digits:
    from torchvision.datasets import MNIST  # not needed for scikit-learn's digits

    root = locate("MNIST", FILES, folder, lambda root: MNIST(str(root), download=True))
    train, test = (MNIST(str(root), train=part) for part in (True, False))
    return Digits(_rows(train.data), train.targets, _rows(test.data), test.targets)


def _rows(images: Tensor) -> Tensor:
    return images.flatten(1).float() / 255


def _digits() -> Digits:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    x, y = torch.from_numpy(bunch.data).float() / 16, torch.from_numpy(bunch.target).long()
    test = torch.arange(len(y)) % 3 == 2
    return Digits(x[~test], y[~test], x[test], y[test])
