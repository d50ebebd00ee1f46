"""The real MNIST files, where they are at hand."""

from pathlib import Path

import pytest

from benchmarks.data.mnist import MEAN, STD, load

pytestmark = pytest.mark.data

TRAIN = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
TEST = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


def test_mnist_is_the_official_split(data_dir: Path) -> None:
    digits = load("mnist", data_dir)
    assert digits.y.bincount().tolist() == TRAIN
    assert digits.test_y.bincount().tolist() == TEST
    assert digits.x.shape == (60_000, 784)
    assert digits.x.mean().item() == pytest.approx(MEAN, abs=1e-4)
    assert digits.x.std().item() == pytest.approx(STD, abs=1e-4)
    assert (digits.x.min().item(), digits.x.max().item()) == (0, 1)
    assert digits.y[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert digits.test_y[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
