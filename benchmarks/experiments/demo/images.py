"""The 1,797 handwritten digits that come with scikit-learn, split for the demo."""

from collections.abc import Mapping
from functools import cache, partial

import torch
from sklearn.datasets import load_digits
from torch import Tensor

from benchmarks.core.training import Batch

TEST = 900
PIXELS, CLASSES = 64, 10


@cache
def digits() -> tuple[Tensor, Tensor]:
    """Return the images, 8 by 8, between 0 and 1, and their labels, in one fixed random order."""
    bunch = load_digits()
    order = torch.randperm(len(bunch.target), generator=torch.Generator().manual_seed(0))
    return torch.from_numpy(bunch.data).float()[order] / 16, torch.from_numpy(bunch.target).long()[order]


def split(seed: int, images: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return which images are for training, validation and test; the test images are the same for every seed."""
    x, _ = digits()
    rest = TEST + torch.randperm(len(x) - TEST, generator=torch.Generator().manual_seed(seed))
    return rest[:images], rest[images:], torch.arange(TEST)


def splits(seed: int, images: int) -> Mapping[str, partial[list[Batch]]]:
    """Return what the trainings of a seed are evaluated on."""
    x, y = digits()
    _, validation, test = split(seed, images)
    return {
        name: partial(list[Batch], [(x[index], y[index])])
        for name, index in (("validation", validation), ("test", test))
    }
