"""Digits for the MNIST benchmarks."""

from pathlib import Path

import pytest
import torch

from benchmarks.core.errors import UserError
from benchmarks.data.mnist import FILES, MEAN, STD, Digits, load


def numbered(count: int = 10, draw: int | None = None) -> Digits:
    """Image i holds i, label i; test images are negative."""
    x = torch.arange(count, dtype=torch.float).unsqueeze(1)
    return Digits(x, torch.arange(count), -x, torch.arange(count), draw)


def test_scikit_digits_are_split_without_overlap() -> None:
    digits = load("digits", None)
    assert len(digits.y) == 1198
    assert len(digits.test_y) == 599
    assert digits.x.shape[1] == 64
    assert digits.x.min() == 0
    assert digits.x.max() == 1
    assert set(digits.y.tolist()) == set(digits.test_y.tolist()) == set(range(10))


@pytest.mark.parametrize("draw", [None, 3, 10])
def test_each_seed_draws_its_own_images(draw: int | None) -> None:
    digits = numbered(draw=draw)
    drawn = [digits.examples(seed) for seed in range(5)]
    assert all(len(set(each.tolist())) == (draw or 10) for each in drawn)
    assert torch.equal(drawn[1], digits.examples(1))
    assert not all(torch.equal(drawn[0], other) for other in drawn[1:])


def test_validation_images_are_neither_trained_on_nor_tested() -> None:
    digits = numbered(draw=4)
    tuning, comparison = digits.validation(3), digits.without_last(3)
    assert tuning.test_x.flatten().tolist() == tuning.test_y.tolist() == [7, 8, 9]
    assert tuning.x.flatten().tolist() == comparison.x.flatten().tolist() == list(range(7))
    assert torch.equal(comparison.test_x, digits.test_x)
    assert torch.equal(tuning.examples(0), comparison.examples(0))
    assert len(tuning.examples(0)) == 4


def test_standardized_pixels() -> None:
    digits = Digits(torch.full((1, 1), MEAN + STD), torch.zeros(1), torch.full((1, 1), MEAN), torch.zeros(1))
    assert digits.standardized().x.item() == pytest.approx(1)
    assert digits.standardized().test_x.item() == 0


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="MNIST: expected") as error:
        load("mnist", tmp_path)
    assert all(file in str(error.value) for file in FILES)
    assert str(tmp_path) in str(error.value)
    assert "--data-dir" in str(error.value)
