"""Handwritten digits as rows of pixels between 0 and 1: MNIST, or the small ones that come with scikit-learn."""

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


@cache
def load(name: Literal["mnist", "digits"], folder: Path | None) -> Images:
    """The data set of that name, (n, pixels); `folder` holds MNIST/raw, as torchvision lays it out."""
    return _mnist(folder) if name == "mnist" else _digits()


def _mnist(folder: Path | None) -> Images:
    from torchvision.datasets import MNIST  # not needed for scikit-learn's digits

    root = locate("MNIST", FILES, folder, lambda root: MNIST(str(root), download=True))
    train, test = (MNIST(str(root), train=part) for part in (True, False))
    return Images(_rows(train.data), train.targets, _rows(test.data), test.targets)


def _rows(images: Tensor) -> Tensor:
    return images.flatten(1).float() / 255


def _digits() -> Images:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    x, y = torch.from_numpy(bunch.data).float() / 16, torch.from_numpy(bunch.target).long()
    test = torch.arange(len(y)) % 3 == 2
    return Images(x[~test], y[~test], x[test], y[test])
