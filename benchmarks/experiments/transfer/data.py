"""Images of CIFAR-10 and CIFAR-100 as a network that was pretrained on ImageNet expects them."""

from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.data.cifar import cifar10, cifar100
from benchmarks.data.images import Images

Name = Literal["cifar10", "cifar100"]
TITLES: dict[Name, str] = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
CLASSES: dict[Name, int] = {"cifar10": 10, "cifar100": 100}
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's pixels, between 0 and 1


def load(name: Name, folder: Path | None, train: int | None = None, test: int | None = None) -> Images:
    """Return images in bytes, (n, 3, 32, 32), all or the first `train` and `test` of them."""
    return (cifar10 if name == "cifar10" else cifar100)(folder, train, test)


def prepare(x: Tensor, size: int) -> Tensor:  # (n, 3, 32, 32) bytes -> (n, 3, size, size) floats
    """Enlarge images (bicubic) if need be, and take out ImageNet's mean and standard deviation."""
    x = x.contiguous(memory_format=torch.channels_last)
    if x.device.type == "cpu":  # fast on bytes, which CUDA does not enlarge
        large = F.interpolate(x, size=size, mode="bicubic").float()
    else:
        large = F.interpolate(x.float(), size=size, mode="bicubic").clamp_(0, 255)
    mean, std = (255 * torch.tensor(each, device=x.device).view(3, 1, 1) for each in (MEAN, STD))
    return large.sub_(mean).div_(std)
