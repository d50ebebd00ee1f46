"""CIFAR-10 from a folder of images: what is read, and what is said where something is missing."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks.core.errors import UserError
from benchmarks.data.cifar import CLASSES, cifar10, cifar100


def folder_of_images(root: Path, classes: tuple[str, ...] = CLASSES, each: int = 2) -> Path:
    for part in ("train", "test"):
        for label, name in enumerate(classes):
            place = root / "cifar10" / part / name
            place.mkdir(parents=True)
            for index in range(each):
                Image.new("RGB", (32, 32), (label, index, 7)).save(place / f"{index}.png")
    return root


def test_images_and_labels_belong_together_in_a_mixed_order(tmp_path: Path) -> None:
    data = cifar10(folder_of_images(tmp_path))
    assert data.x.shape == (20, 3, 32, 32)
    assert data.x.dtype == torch.uint8
    assert torch.equal(data.x[:, 0, 0, 0].long(), data.y)
    assert torch.equal(data.test_x[:, 0, 5, 9].long(), data.test_y)
    assert (data.x[:, 2] == 7).all()
    assert not torch.equal(data.y, data.y.sort().values)
    assert data.y.bincount().tolist() == [2] * 10


@pytest.mark.parametrize(
    ("load", "folder", "train", "test", "meta", "key"),
    [
        (cifar10, "cifar-10-batches-py", [f"data_batch_{i}" for i in range(1, 6)], "test_batch", "batches.meta", ""),
        (cifar100, "cifar-100-python", ["train"], "test", "meta", "fine_"),
    ],
)
def test_torchvisions_own_files_are_read(
    load: Any, folder: str, train: list[str], test: str, meta: str, key: str,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Although their checksums are not torchvision's own."""
    monkeypatch.setattr("torchvision.datasets.CIFAR10._check_integrity", lambda self: True)
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda *_: True)
    (tmp_path / folder).mkdir()
    for name in (*train, test):
        content = {"data": np.arange(3 * 3072).reshape(3, 3072).astype(np.uint8), f"{key}labels": [3, 4, 5]}
        (tmp_path / folder / name).write_bytes(pickle.dumps(content))
    (tmp_path / folder / meta).write_bytes(pickle.dumps({f"{key}label_names": list(CLASSES)}))
    data = load(tmp_path)
    assert data.x.shape == (3 * len(train), 3, 32, 32)
    assert data.y.tolist() == [3, 4, 5] * len(train)
    assert data.test_y.tolist() == [3, 4, 5]
    assert data.x[0, 1, 0, 0] == 1024 % 256
    assert len(load(tmp_path, 2, 1).y) == 2


def test_missing_data_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cifar10/train and cifar10/test .*expected cifar-10-batches-py/data_batch_1"):
        cifar10(tmp_path)


def test_other_classes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="must hold the folders airplane, automobile"):
        cifar10(folder_of_images(tmp_path, classes=("cat", "mouse")))
