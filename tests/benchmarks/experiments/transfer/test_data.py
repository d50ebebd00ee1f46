"""Images for transfer: the splits, CIFAR-100 as torchvision keeps it, and what the networks see."""

from pathlib import Path

import pytest
import torch
from helpers.cifar import write_cifar100

from benchmarks.core.errors import UserError
from benchmarks.data.images import Images
from benchmarks.experiments.transfer import data as transfer_data
from benchmarks.experiments.transfer.data import prepare


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


def test_cifar100_is_read_from_torchvisions_own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_cifar100(tmp_path, 3, 2, monkeypatch)
    found = transfer_data.load("cifar100", tmp_path, 2)
    assert found.x.shape == (2, 3, 32, 32)
    assert found.x[0, 1, 0, 0] == 1024 % 256
    assert found.y.tolist() == found.test_y.tolist() == [0, 1]


def test_missing_cifar100_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="CIFAR-100: expected cifar-100-python/train, cifar-100-python/test in"):
        transfer_data.load("cifar100", tmp_path)


def test_damaged_cifar100_is_named(tmp_path: Path) -> None:
    (tmp_path / "cifar-100-python").mkdir()
    for name in ("train", "test"):
        (tmp_path / "cifar-100-python" / name).write_bytes(b"")
    with pytest.raises(UserError, match=r"CIFAR-100: .*must be torchvision's own"):
        transfer_data.load("cifar100", tmp_path)


def test_prepared_images_are_large_and_normalized() -> None:
    white = prepare(torch.full((2, 3, 32, 32), 255, dtype=torch.uint8), 96)
    assert white.shape == (2, 3, 96, 96)
    for channel, (mean, std) in enumerate(zip((0.485, 0.456, 0.406), (0.229, 0.224, 0.225), strict=True)):
        torch.testing.assert_close(white[:, channel], torch.full((2, 96, 96), (1 - mean) / std))
