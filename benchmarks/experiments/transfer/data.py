"""Images of CIFAR-10, CIFAR-100 and MNIST as a pretrained network expects them."""

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.core.errors import UserError
from benchmarks.data import mnist as mnist_data
from benchmarks.data.cifar import IMAGES as CIFAR_IMAGES
from benchmarks.data.cifar import cifar10
from benchmarks.data.locate import locate

Name = Literal["cifar10", "cifar100", "mnist"]
TITLES: dict[Name, str] = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "mnist": "MNIST"}
IMAGES: dict[Name, int] = {"cifar10": CIFAR_IMAGES, "cifar100": 50_000, "mnist": 60_000}  # to train on
CLASSES: dict[Name, int] = {"cifar10": 10, "cifar100": 100, "mnist": 10}
FILES_100 = ("cifar-100-python/train", "cifar-100-python/test")
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's pixels, between 0 and 1


@dataclass(frozen=True)
class Task:
    """Images in bytes (n, 3, 32, 32) with labels: to train on, and to evaluate on."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor

    def to(self, device: torch.device) -> "Task":
        return Task(*(part.to(device) for part in (self.x, self.y, self.test_x, self.test_y)))

    def tuning(self, validation: int) -> "Task":
        """The last `validation` training images in the place of the test images, and no longer trained on."""
        return replace(self.training(validation), test_x=self.x[-validation:], test_y=self.y[-validation:])

    def training(self, validation: int) -> "Task":
        """Without the last `validation` training images."""
        kept = len(self.y) - validation
        return replace(self, x=self.x[:kept], y=self.y[:kept])

    def draw(self, images: int | None, generator: torch.Generator) -> "Task":
        """A random choice of the training images; all, in their order, if None.

        Raises:
            UserError: If there are not that many.
        """
        if images is None:
            return self
        if images > len(self.y):
            raise UserError(f"transfer: images must be at most {len(self.y)}, which are there, got {images}.")
        index = torch.randperm(len(self.y), generator=generator)[:images].to(self.y.device)
        return replace(self, x=self.x[index], y=self.y[index])


@cache
def load(name: Name, folder: Path | None, train: int | None = None, test: int | None = None) -> Task:
    """All images, or the first `train` and `test` of them; read once in the life of the process.

    Raises:
        UserError: If they are not there and cannot be downloaded.
    """
    if name == "cifar10":
        found = cifar10(folder, train, test)
        return Task(found.x, found.y, found.test_x, found.test_y)
    if name == "mnist":
        digits = mnist_data.load("mnist", folder)
        x, test_x = _coloured(digits.x[:train]), _coloured(digits.test_x[:test])
        return Task(x, digits.y[:train], test_x, digits.test_y[:test])
    from torchvision.datasets import CIFAR100

    root = locate("CIFAR-100", FILES_100, folder, lambda root: CIFAR100(str(root), download=True))
    try:
        halves = [CIFAR100(str(root), train=part) for part in (True, False)]
    except RuntimeError as error:
        raise UserError(f"CIFAR-100: {root / 'cifar-100-python'} must be torchvision's own: {error}") from error
    pixels = [torch.from_numpy(half.data).permute(0, 3, 1, 2) for half in halves]
    labels = [torch.tensor(half.targets) for half in halves]
    return Task(pixels[0][:train], labels[0][:train], pixels[1][:test], labels[1][:test])


def _coloured(rows: Tensor) -> Tensor:  # (n, 784) between 0 and 1 -> (n, 3, 32, 32) bytes
    """Digits in the middle of an image of three equal channels."""
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
