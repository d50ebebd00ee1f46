"""Digits for the MNIST benchmarks."""

from pathlib import Path

import pytest

from benchmarks.data.mnist import load


def test_scikit_digits_are_split_without_overlap() -> None:
    digits = load("digits", None)
    assert len(digits.y) == 1198
    assert len(digits.test_y) == 599
    assert digits.x.shape[1] == 64
    assert digits.x.min() == 0
    assert digits.x.max() == 1
    assert set(digits.y.tolist()) == set(digits.test_y.tolist()) == set(range(10))


TRAIN = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
TEST = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


@pytest.mark.data
def test_mnist_is_the_official_split(data_dir: Path) -> None:
    digits = load("mnist", data_dir)
    assert digits.y.bincount().tolist() == TRAIN
    assert digits.test_y.bincount().tolist() == TEST
    assert digits.x.shape == (60_000, 784)
    assert digits.x.mean().item() == pytest.approx(0.1307, abs=1e-4)
    assert digits.x.std().item() == pytest.approx(0.3081, abs=1e-4)
    assert (digits.x.min().item(), digits.x.max().item()) == (0, 1)
    assert digits.y[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert digits.test_y[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
