"""Slow biases of the last layer of a ResNet on CIFAR-10 (the paper's appendix "Slow Biases", last figure).

Differs from the paper: it does not give the number of epochs, the momentum here (0.9 is its default) or the stem;
`gpu` and `paper` use the 3x3 stem that is usual on 32x32 images, `cpu` a ResNet-8 of width 8 on a part of the images.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Optimizer
from torchvision.models.resnet import BasicBlock

import mrreg
from benchmarks.core.comparison import Comparison, Job, each_epoch
from benchmarks.core.sections import Claim, Curves, Section, gain, rows
from benchmarks.core.study import Study, late
from benchmarks.core.training import Batch, Batches, Loop, shuffled
from benchmarks.data.cifar import IMAGES, cifar10, normal
from benchmarks.data.images import Images

LR, K, BATCH = 0.1, 10, 128  # h / k and k of the paper's h = 1, k = 10
CHUNK = 500  # images evaluated at once
PAD = 4  # augmentation: a random crop of the image padded by so many pixels, and a random flip


@dataclass(frozen=True)
class BiasesConfig:
    """The network, how many images, how long."""

    seeds: int
    epochs: int
    blocks: tuple[int, ...]  # residual blocks of each stage; every stage is twice as wide as the one before
    width: int
    images: int | None = None  # all
    test_images: int | None = None
    momentum: float = 0.9
    bfloat16: bool = False


PRESETS = {
    # with fewer than 8 channels, torch 2.14.1 damages memory: backward of a 1x1 convolution of stride 2, channels_last
    "smoke": BiasesConfig(seeds=2, epochs=1, blocks=(1, 1), width=8, images=160, test_images=100),
    "cpu": BiasesConfig(seeds=4, epochs=16, blocks=(1, 1, 1), width=8, images=5_120),
    "gpu": BiasesConfig(seeds=3, epochs=15, blocks=(3, 4, 6, 3), width=64, bfloat16=True),
    "paper": BiasesConfig(seeds=10, epochs=100, blocks=(3, 4, 6, 3), width=64),
}


@dataclass(frozen=True)
class Method:
    """SGD, or the last layer's bias on the slow time scale; with or without augmented images."""

    multirate: bool
    augmented: bool


METHODS = {
    "SGD": Method(multirate=False, augmented=False),
    "multirate": Method(multirate=True, augmented=False),
    "SGD, augmented": Method(multirate=False, augmented=True),
    "multirate, augmented": Method(multirate=True, augmented=True),
}


def resnet(blocks: Sequence[int], width: int) -> nn.Sequential:
    """A ResNet for 32x32 images with the last layer named `fc`; (3, 4, 6, 3) and 64 is ResNet-34."""
    widths = [width * 2**stage for stage in range(len(blocks))]
    trunk: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    for stage, (before, after) in enumerate(pairwise([width, *widths])):
        trunk.append(_block(before, after, stride=1 if stage == 0 else 2))
        trunk.extend(_block(after, after, stride=1) for _ in range(blocks[stage] - 1))
    net = nn.Sequential(*trunk, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    net.add_module("fc", nn.Linear(widths[-1], 10))
    return net


def _block(before: int, after: int, stride: int) -> BasicBlock:
    if before == after and stride == 1:
        return BasicBlock(before, after)
    shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))
    return BasicBlock(before, after, stride, shortcut)


def optimizer(method: Method, net: nn.Module, momentum: float) -> Optimizer:
    if method.multirate:
        return mrreg.MultirateSGD(mrreg.biases(net, layers="fc"), lr=LR, k=K, momentum=momentum, model=net)
    return SGD(net.parameters(), lr=LR, momentum=momentum)


def augment(x: Tensor, generator: torch.Generator) -> Tensor:  # (N, C, H, W)
    """Each image cropped at a random place after padding, and flipped or not."""
    count, channels, height, width = x.shape
    padded = F.pad(x, (PAD,) * 4)
    down, right = torch.randint(2 * PAD + 1, (2, count, 1), generator=generator)
    flipped = torch.rand(count, 1, generator=generator) < 0.5
    along = torch.arange(width)
    rows = (down + torch.arange(height)).to(x.device)
    columns = (right + torch.where(flipped, along.flip(0), along)).to(x.device)
    image, channel = torch.arange(count, device=x.device), torch.arange(channels, device=x.device)
    return padded[image[:, None, None, None], channel[:, None, None], rows[:, None, :, None], columns[:, None, None, :]]


def batches(data: Images, augmented: bool, generator: torch.Generator) -> Batches:
    """Return batches of the training images, each epoch in a new order; a short last batch is used too."""

    def take(index: Tensor) -> Batch:
        chosen = index.to(data.x.device)
        x = data.x[chosen]
        return normal(augment(x, generator) if augmented else x), data.y[chosen]

    return Batches(shuffled(len(data.y), BATCH), take, generator)


def comparisons(config: BiasesConfig) -> list[Comparison[Method]]:
    epoch = -(-(config.images or IMAGES) // BATCH)
    return [Comparison(METHODS, config.seeds, each_epoch(epoch, config.epochs))]


def build(config: BiasesConfig, method: Method, seed: int, job: Job) -> Loop:
    """Return the training of a network; all methods of a seed see the same initial weights, order and crops."""
    data = cifar10(job.data_dir, config.images, config.test_images).to(job.device)
    torch.manual_seed(seed)
    net = resnet(config.blocks, config.width).to(memory_format=torch.channels_last).to(job.device)
    return Loop(
        net,
        optimizer(method, net, config.momentum),
        batches(data, method.augmented, torch.Generator().manual_seed(seed)),
        {"test": partial(data.held_out, CHUNK, normal)},
        forward=partial(torch.autocast, job.device.type, torch.bfloat16, enabled=config.bfloat16),
    )


SECTION = Section(
    "Figure A14", "Slow biases of the last layer of a ResNet on CIFAR-10", "%",
    rows=rows(METHODS, "accuracy"),
    claims=(
        Claim("slow biases better than SGD without augmentation", gain("multirate", "SGD", "accuracy")),
        Claim("slow biases better than SGD with augmentation",
              gain("multirate, augmented", "SGD, augmented", "accuracy")),
    ),
    plots=(Curves({method: method for method in METHODS}, "accuracy by step", "epoch", "test accuracy [%]"),),
    full=frozenset({"paper"}),
    note="Accuracy: mean of the last quarter of the epochs. The paper names neither epochs nor momentum (here 0.9).",
)  # fmt: skip
STUDY = Study("biases", PRESETS, comparisons, build, summary=late, data="images of CIFAR-10")
BENCHMARK = STUDY.benchmark([SECTION])
