"""Pretrained networks with a new last layer, and their parts from the last to the first."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision import models

from benchmarks.core.errors import UserError
from benchmarks.data.locate import locate

Name = Literal["mobilenet", "resnet20", "resnet34", "resnet50"]


@dataclass(frozen=True)
class Source:
    """The origin of a pretrained network, and its parts."""

    title: str  # what it is called in reports and messages
    build: Callable[[], nn.Module]  # makes the network as it was pretrained, with a last layer named `fc`
    file: str  # its weights, below the data folder
    url: str  # where torchvision has them; empty where nobody offers them for download
    # names of its modules, from the last (trained first by whoever trains in part) to the first
    parts: tuple[tuple[str, ...], ...]
    data: str = "ImageNet"  # what it was pretrained on


class MobileNetV1(nn.Module):
    """The layout of the ImageNet weights at hand: width 0.25, LeakyReLU, 256 features (Howard et al., 2017).

    Args:
        classes: Outputs of the last layer.

    Shape:
        (N, 3, H, W) -> (N, classes); H and W at least 32 leave something to average.
    """

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.stage1 = nn.Sequential(
            _convolution(3, 8, stride=2), _separable(8, 16), _separable(16, 32, 2), _separable(32, 32),
            _separable(32, 64, 2), _separable(64, 64),
        )  # fmt: skip
        self.stage2 = nn.Sequential(_separable(64, 128, 2), *(_separable(128, 128) for _ in range(5)))
        self.stage3 = nn.Sequential(_separable(128, 256, 2), _separable(256, 256))
        self.fc = nn.Linear(256, classes)

    def forward(self, x: Tensor) -> Tensor:  # (N, 3, H, W) -> (N, classes)
        y: Tensor = self.fc(self.stage3(self.stage2(self.stage1(x))).mean((2, 3)))
        return y


def _convolution(before: int, after: int, stride: int, groups: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(before, after, 3, stride, padding=1, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(after), nn.LeakyReLU(0.1))


def _separable(before: int, after: int, stride: int = 1) -> nn.Sequential:
    """A convolution of each channel on its own, then one over channels."""
    pointwise = nn.Conv2d(before, after, 1, bias=False)
    return nn.Sequential(
        *_convolution(before, before, stride, groups=before), pointwise, nn.BatchNorm2d(after), nn.LeakyReLU(0.1)
    )


class ResNet20(nn.Module):
    """The network of He et al. (2016) for images of 32 pixels: three stages of three blocks, 16, 32 and 64 channels.

    Shape:
        (N, 3, H, W) -> (N, classes)
    """

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.layer1 = nn.Sequential(*(_Block(16, 16) for _ in range(3)))
        self.layer2 = nn.Sequential(_Block(16, 32, 2), _Block(32, 32), _Block(32, 32))
        self.layer3 = nn.Sequential(_Block(32, 64, 2), _Block(64, 64), _Block(64, 64))
        self.fc = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:  # (N, 3, H, W) -> (N, classes)
        x = F.relu(self.bn1(self.conv1(x)))
        y: Tensor = self.fc(self.layer3(self.layer2(self.layer1(x))).mean((2, 3)))
        return y


class _Block(nn.Module):
    """Two convolutions and a shortcut without parameters: every second pixel, and channels of zeros around its own."""

    def __init__(self, before: int, after: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False), nn.BatchNorm2d(after)
        self.conv2, self.bn2 = nn.Conv2d(after, after, 3, padding=1, bias=False), nn.BatchNorm2d(after)
        self.stride, self.more = stride, (after - before) // 2

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        shortcut = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.more, self.more))
        return F.relu(y + shortcut)


def _resnet(title: str, build: Callable[[], nn.Module], url: str) -> Source:
    parts = (("fc",), ("layer4",), ("layer3",), ("layer2",), ("layer1", "conv1", "bn1"))
    return Source(title, build, f"models/{url.rpartition('/')[2]}", url, parts)


SOURCES: dict[Name, Source] = {
    "mobilenet": Source(
        "MobileNetV1 (width 0.25)", MobileNetV1, "models/mobilenet_v1_025_imagenet.pt", "",
        (("fc",), ("stage3",), ("stage2",), ("stage1",)),
    ),
    "resnet20": Source(
        "ResNet-20", ResNet20, "models/resnet20-12fca82f.th",
        "https://github.com/akamaster/pytorch_resnet_cifar10/raw/master/pretrained_models/resnet20-12fca82f.th",
        (("fc",), ("layer3",), ("layer2",), ("layer1", "conv1", "bn1")), "CIFAR-10",
    ),
    "resnet34": _resnet("ResNet-34", models.resnet34, models.ResNet34_Weights.IMAGENET1K_V1.url),
    "resnet50": _resnet("ResNet-50", models.resnet50, models.ResNet50_Weights.IMAGENET1K_V1.url),
}  # fmt: skip


def pretrained(name: Name, classes: int, folder: Path | None) -> nn.Module:
    """A network with pretrained weights and a new last layer, drawn from torch's global random state.

    Raises:
        UserError: If the weights are not there and cannot be downloaded, or do not fit.
    """
    source = SOURCES[name]
    net = source.build()
    path = locate(f"{source.title}, trained on {source.data}", [source.file], folder, _download(source)) / source.file
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
        net.load_state_dict(_counts(net) | _plain(saved.get("state_dict", saved)))
    except (RuntimeError, AttributeError, OSError, ValueError, UnpicklingError) as error:
        first = (str(error).splitlines() or [""])[0]
        raise UserError(f"{path}: must hold the weights of {source.title}: {first}") from error
    fc = net.get_submodule("fc")
    assert isinstance(fc, nn.Linear)
    net.add_module("fc", nn.Linear(fc.in_features, classes))
    return net


def _plain(saved: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights as they are named here; the ResNet-20 was saved inside a DataParallel, and its last layer is "linear"."""
    return {re.sub(r"^linear\.", "fc.", name.removeprefix("module.")): value for name, value in saved.items()}


def _counts(net: nn.Module) -> dict[str, Tensor]:
    """Return the counts of batches of BatchNorm layers: older files lack them, only cumulative averages need them."""
    return {name: value for name, value in net.state_dict().items() if name.endswith("num_batches_tracked")}


def _download(source: Source) -> Callable[[Path], object] | None:
    if not source.url:
        return None
    return lambda root: torch.hub.load_state_dict_from_url(source.url, str(root / "models"), progress=False)


def parts(name: Name, count: int) -> list[str]:
    """The names of the modules in the last `count` parts; of all of them where there are fewer."""
    return [module for part in SOURCES[name].parts[:count] for module in part]
