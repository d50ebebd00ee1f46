"""CIFAR-10 and CIFAR-100 as tensors of bytes, (n, 3, 32, 32): torchvision's own files, or a folder of images by class.

From a folder, images come in random order.
"""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.core.errors import UserError
from benchmarks.data.images import Images
from benchmarks.data.locate import locate

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FILES = ("cifar-10-batches-py/data_batch_1", "cifar-10-batches-py/test_batch")
FILES_100 = ("cifar-100-python/train", "cifar-100-python/test")
FOLDERS = ("cifar10/train", "cifar10/test")
IMAGES = 50_000  # to train on
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)  # of the training pixels, between 0 and 1


def normal(x: Tensor) -> Tensor:
    """Bytes as floating-point numbers with CIFAR-10's mean and standard deviation taken out."""
    mean, std = (torch.tensor(each, device=x.device).view(3, 1, 1) for each in (MEAN, STD))
    return (x.float() / 255 - mean) / std


@cache
def cifar10(folder: Path | None, train: int | None = None, test: int | None = None) -> Images:
    """CIFAR-10, or its first `train` and `test` images, read once in the life of the process.

    From `cifar10/{train,test}/CLASS/*.png` where there are such folders, else from torchvision's files.

    Raises:
        UserError: If there are neither and none can be downloaded, or the folders do not hold the same ten classes.
    """
    from torchvision.datasets import CIFAR10

    try:
        root = locate("CIFAR-10", FOLDERS, folder, None)
    except UserError:
        name = f"CIFAR-10 (or {' and '.join(FOLDERS)} with a folder of images for each class)"
        root = locate(name, FILES, folder, lambda root: CIFAR10(str(root), download=True))
        return _own(CIFAR10, root, train, test)
    return Images(*_images(root / FOLDERS[0], train), *_images(root / FOLDERS[1], test))


@cache
def cifar100(folder: Path | None, train: int | None = None, test: int | None = None) -> Images:
    """CIFAR-100 from torchvision's files, or its first `train` and `test` images, as `cifar10`."""
    from torchvision.datasets import CIFAR100

    root = locate("CIFAR-100", FILES_100, folder, lambda root: CIFAR100(str(root), download=True))
    try:
        return _own(CIFAR100, root, train, test)
    except RuntimeError as error:
        raise UserError(f"CIFAR-100: {root / 'cifar-100-python'} must be torchvision's own: {error}") from error


def _own(dataset: Any, root: Path, train: int | None, test: int | None) -> Images:
    found = [(dataset(str(root), train=part), count) for part, count in ((True, train), (False, test))]
    parts = [(torch.from_numpy(each.data).permute(0, 3, 1, 2)[:n], torch.tensor(each.targets)[:n]) for each, n in found]
    return Images(*parts[0], *parts[1])


def _images(folder: Path, count: int | None) -> tuple[Tensor, Tensor]:
    """The images below a folder in an order that is random but always the same, so that a part has all classes."""
    from torchvision.datasets import ImageFolder

    try:
        found = ImageFolder(str(folder))
    except FileNotFoundError as error:
        raise UserError(f"CIFAR-10: {folder} must hold a folder of images for each class: {error}") from error
    if found.classes != sorted(CLASSES):
        raise UserError(f"CIFAR-10: {folder} must hold the folders {', '.join(sorted(CLASSES))}.")
    order = torch.randperm(len(found), generator=torch.Generator().manual_seed(0))[:count].tolist()
    pixels = np.stack([np.asarray(found.loader(found.samples[index][0])) for index in order])
    labels = torch.tensor([found.samples[index][1] for index in order])
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous(), labels
