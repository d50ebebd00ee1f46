"""Images of CIFAR-10, CIFAR-100 and MNIST as a pretrained network expects them."""

from functools import cache
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.data import mnist as mnist_data
from benchmarks.data.cifar import IMAGES as CIFAR_IMAGES
from benchmarks.data.cifar import cifar10, cifar100
from benchmarks.data.images import Images

Name = Literal["cifar10", "cifar100", "mnist"]
TITLES: dict[Name, str] = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "mnist": "MNIST"}
IMAGES: dict[Name, int] = {"cifar10": CIFAR_IMAGES, "cifar100": 50_000, "mnist": 60_000}  # to train on
CLASSES: dict[Name, int] = {"cifar10": 10, "cifar100": 100, "mnist": 10}
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's pixels, between 0 and 1


@cache
def load(name: Name, folder: Path | None, train: int | None = None, test: int | None = None) -> Images:
    """Return images in bytes, (n, 3, 32, 32), all or the first `train` and `test` of them; read once in a process.

    Raises:
        UserError: If they are not there and cannot be downloaded.
    """
    if name != "mnist":
        return (cifar10 if name == "cifar10" else cifar100)(folder, train, test)
    digits = mnist_data.load("mnist", folder)
    x, test_x = _coloured(digits.x[:train]), _coloured(digits.test_x[:test])
    return Images(x, digits.y[:train], test_x, digits.test_y[:test])


def _coloured(rows: Tensor) -> Tensor:  # (n, 784) between 0 and 1 -> (n, 3, 32, 32) bytes
    grey = F.pad((255 * rows).round().to(torch.uint8).view(-1, 1, 28, 28), (2, 2, 2, 2))
    return grey.expand(-1, 3, -1, -1)


def prepare(x: Tensor, size: int) -> Tensor:  # (n, 3, 32, 32) bytes -> (n, 3, size, size) floats
    """Enlarge images (bicubic) if need be, and take out ImageNet's mean and standard deviation."""
    x = x.contiguous(memory_format=torch.channels_last)
    if x.device.type == "cpu":  # fast on bytes, which CUDA does not enlarge
        large = F.interpolate(x, size=size, mode="bicubic").float()
    else:
        large = F.interpolate(x.float(), size=size, mode="bicubic").clamp_(0, 255)
    mean, std = (255 * torch.tensor(each, device=x.device).view(3, 1, 1) for each in (MEAN, STD))
    return large.sub_(mean).div_(std)
