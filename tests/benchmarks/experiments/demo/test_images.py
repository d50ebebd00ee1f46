"""The digits of the demo: splits that do not overlap, the same test images for all."""

import pytest
import torch

from benchmarks.experiments.demo.images import digits, split, splits


@pytest.mark.parametrize("seed", [0, 1, 1000])
def test_no_image_is_in_two_splits(seed: int) -> None:
    parts = split(seed, 100)
    assert [len(part) for part in parts] == [100, 797, 900]
    assert len(set(torch.cat(parts).tolist())) == 1797


def test_test_images_are_the_same_for_all_and_training_images_are_not() -> None:
    (train, _, test), (other_train, _, other_test) = split(0, 100), split(1, 100)
    assert torch.equal(test, other_test)
    assert not torch.equal(train, other_train)


def test_the_digits_are_whole() -> None:
    x, y = digits()
    assert x.shape == (1797, 64)
    assert (x.min().item(), x.max().item()) == (0, 1)
    assert set(y.tolist()) == set(range(10))


def test_trainings_are_evaluated_on_the_split_of_their_seed() -> None:
    x, y = digits()
    _, validation, test = split(3, 100)
    ((seen, labels),) = splits(3, 100)["validation"]()
    torch.testing.assert_close(seen, x[validation], rtol=0, atol=0)
    assert torch.equal(labels, y[validation])
    assert torch.equal(splits(3, 100)["test"]()[0][1], y[test])
