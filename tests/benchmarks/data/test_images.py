"""Images are split for a search, a comparison and a test, and drawn by a seed."""

import pytest
import torch

from benchmarks.core.errors import UserError
from benchmarks.data.images import Images


def task(count: int = 10) -> Images:
    x = torch.arange(count, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 32, 32)
    return Images(x, torch.arange(count), x + 100, torch.arange(count))


def test_images_of_the_search_are_neither_trained_on_nor_tested_on() -> None:
    tuning, training = task().validation(3), task().without_last(3)
    assert tuning.y.tolist() == training.y.tolist() == list(range(7))
    assert tuning.test_x[:, 0, 0, 0].tolist() == tuning.test_y.tolist() == [7, 8, 9]
    assert training.test_x[0, 0, 0, 0] == 100


def test_a_draw_keeps_images_and_labels_together_and_follows_from_the_seed() -> None:
    one, two, other = (task(100).drawn(20, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert one.x[:, 0, 0, 0].tolist() == one.y.tolist() == two.y.tolist()
    assert len(set(one.y.tolist())) == 20
    assert one.y.tolist() != other.y.tolist()
    assert task().drawn(None, torch.Generator()).y.tolist() == list(range(10))


def test_more_images_than_there_are_is_an_error() -> None:
    with pytest.raises(UserError, match="images must be at most 10, which are there, got 11"):
        task().drawn(11, torch.Generator())
