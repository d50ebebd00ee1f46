"""Pretrained networks with a new last layer, their parts from the last to the first, and which of them train when."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Optimizer
from torchvision import models

import mrreg
from benchmarks.core.errors import UserError
from benchmarks.data.locate import locate

Name = Literal["mobilenet", "resnet34", "resnet50"]


@dataclass(frozen=True)
class Source:
    """The origin of a pretrained network, and its parts."""

    title: str  # what it is called in reports and messages
    build: Callable[[], nn.Module]  # makes the network as it was pretrained, with a last layer named `fc`
    file: str  # its weights, below the data folder
    url: str  # where torchvision has them; empty where nobody offers them for download
    # names of its modules, from the last (trained first by whoever trains in part) to the first
    parts: tuple[tuple[str, ...], ...]


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


def _resnet(title: str, build: Callable[[], nn.Module], url: str) -> Source:
    parts = (("fc",), ("layer4",), ("layer3",), ("layer2",), ("layer1", "conv1", "bn1"))
    return Source(title, build, f"models/{url.rpartition('/')[2]}", url, parts)


SOURCES: dict[Name, Source] = {
    "mobilenet": Source(
        "MobileNetV1 (width 0.25)", MobileNetV1, "models/mobilenet_v1_025_imagenet.pt", "",
        (("fc",), ("stage3",), ("stage2",), ("stage1",)),
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
    path = locate(f"{source.title}, trained on ImageNet", [source.file], folder, _download(source)) / source.file
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
        net.load_state_dict(_counts(net) | saved.get("state_dict", saved))
    except (RuntimeError, AttributeError, OSError, ValueError, UnpicklingError) as error:
        first = (str(error).splitlines() or [""])[0]
        raise UserError(f"{path}: must hold the weights of {source.title}: {first}") from error
    fc = net.get_submodule("fc")
    assert isinstance(fc, nn.Linear)
    net.add_module("fc", nn.Linear(fc.in_features, classes))
    return net


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


K, MOMENTUM = 5, 0.9


@dataclass(frozen=True)
class Method:
    """The parts of a network that train, and how often; parts are counted from the last."""

    trained: int | None = None  # how many parts train; None is all of them
    fast: int | None = None  # how many parts train at every step, the others at every K-th; None is ordinary training
    slow_lr: str = "coupled"  # the learning rate of slow parts, as `MultirateSGD` takes it
    gradual: bool = False  # one more part trains from each epoch on
    lr: float | None = None  # the learning rate; None is that of the comparison


FULL, FC, BLOCK, GRADUAL = "full fine-tuning", "fc only", "last block + fc only", "gradual unfreezing"
MULTIRATE, MULTIRATE_BLOCK = f"multirate k = {K}, fast: fc", f"multirate k = {K}, fast: fc + last block"
MULTIRATE_HELD = f"{MULTIRATE}, slow lr / k"
METHODS = {
    FULL: Method(),
    MULTIRATE: Method(fast=1),
    MULTIRATE_BLOCK: Method(fast=2),
    MULTIRATE_HELD: Method(fast=1, slow_lr="per_gradient"),
    FC: Method(trained=1),
    BLOCK: Method(trained=2),
    GRADUAL: Method(gradual=True),
}


def optimizer(net: nn.Module, network: Name, method: Method, lr: float, weight_decay: float) -> Optimizer:
    """Return SGD with momentum, or MultirateSGD where some parts are slow; what does not train gets no gradient."""
    options: dict[str, Any] = {"lr": lr, "momentum": MOMENTUM, "weight_decay": weight_decay}
    if method.fast is not None:
        return mrreg.MultirateSGD(net, k=K, fast=parts(network, method.fast), slow_lr=method.slow_lr, **options)
    unfreeze(net, network, 1 if method.gradual else method.trained)
    return SGD(net.parameters(), **options)


def unfreeze(net: nn.Module, network: Name, count: int | None) -> None:
    """Let the last `count` parts require gradients and no others; all of them if None."""
    net.requires_grad_(count is None)
    for module in parts(network, count or 0):
        net.get_submodule(module).requires_grad_(True)


MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's pixels, between 0 and 1


def prepare(x: Tensor, size: int) -> Tensor:  # (n, 3, 32, 32) bytes -> (n, 3, size, size) floats
    """Enlarge images (bicubic) if need be, and take out ImageNet's mean and standard deviation."""
    x = x.contiguous(memory_format=torch.channels_last)
    if x.device.type == "cpu":  # fast on bytes, which CUDA does not enlarge
        large = F.interpolate(x, size=size, mode="bicubic").float()
    else:
        large = F.interpolate(x.float(), size=size, mode="bicubic").clamp_(0, 255)
    mean, std = (255 * torch.tensor(each, device=x.device).view(3, 1, 1) for each in (MEAN, STD))
    return large.sub_(mean).div_(std)
