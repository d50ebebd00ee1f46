"""A WideResNet, and two copies of it that learn on two time scales and are merged.

The paper says of its scheme on patch-augmented CIFAR-10: "we partitioned a composite network system into two parts,
where each subnetwork was trained on a different timescale. The weights sampled from both parts were averaged and merged
every k steps". We read: two copies F and S of one network, the parts of Algorithm 1; with h = h_F and k h = h_S,

- at every step t:       p_F <- mu p_F + grad L(F) + w F,    F <- F - h p_F;
- at t = 0, k, 2k, ...:  p_S <- mu p_S + grad L(S) + w S     on the same mini-batch;
- at every step:         S <- S - h p_S, in all k h = h_S along one gradient;
- after k steps:         F, S <- (F + S) / 2. Each keeps its own momentum.

The merged network is the result. The closed record `patches-search` has other readings.
"""

from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

import mrreg
from benchmarks.data.cifar import CLASSES

STEM = 16  # channels of the first layer, whatever the width factor


class Block(nn.Module):
    """Two 3x3 convolutions, each after batch normalization and ReLU, beside a shortcut (Zagoruyko, Komodakis 2016)."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm2d(before), nn.BatchNorm2d(after)
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        same = before == after and stride == 1
        self.shortcut = None if same else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(self.norm1(x))
        around = x if self.shortcut is None else self.shortcut(active)
        out: Tensor = around + self.conv2(F.relu(self.norm2(self.conv1(active))))
        return out


def wide_resnet(depth: int, width: int) -> nn.Sequential:
    """WideResNet-`depth`-`width` for images of at least 4x4 pixels; depth is 6 n + 4."""
    channels = STEM
    layers: list[nn.Module] = [nn.Conv2d(3, channels, 3, 1, 1, bias=False)]
    for stage in range(3):
        for number in range((depth - 4) // 6):
            after = STEM * width * 2**stage
            layers.append(Block(channels, after, 2 if stage and not number else 1))
            channels = after
    layers += [nn.BatchNorm2d(channels), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    net = nn.Sequential(*layers, nn.Linear(channels, len(CLASSES)))
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return net


class Copies(nn.Module):
    """Two copies of a network, which both become their mean after every k steps; the slow one comes first.

    The slow one takes a gradient at the first step of k; in training mode the output is that of each copy that takes
    one.
    """

    def __init__(self, net: nn.Module, k: int) -> None:
        super().__init__()
        self.slow, self.net = deepcopy(net), net  # what is fast comes last, as in other models
        self.k, self.done = k, 0

    def forward(self, x: Tensor) -> Tensor | list[Tensor]:
        if not self.training:
            return self.net(x)  # type: ignore[no-any-return]
        return [self.net(x), self.slow(x)] if self.done % self.k == 0 else [self.net(x)]

    @torch.no_grad()
    def after_step(self) -> None:
        """Count a step; merge where it is the last one of a cycle."""
        self.done += 1
        if self.done % self.k == 0:
            for fast, slow in zip(self.net.parameters(), self.slow.parameters(), strict=True):
                slow.lerp_(fast, 0.5)
                fast.copy_(slow)

    def get_extra_state(self) -> int:
        return self.done

    def set_extra_state(self, state: int) -> None:
        self.done = state


def sum_of_losses(outputs: list[Tensor], y: Tensor) -> Tensor:
    """Return the sum of the losses of those copies that take a gradient."""
    return torch.stack([F.cross_entropy(each, y) for each in outputs]).sum()


def optimizer(copies: Copies, lr: float, momentum: float, weight_decay: float) -> Optimizer:
    """Return the optimizer of both copies: h_F = `lr`, h_S = k times that."""
    fast = list(copies.net.parameters())
    return mrreg.MultirateSGD(copies, lr=lr, k=copies.k, fast=fast, momentum=momentum, weight_decay=weight_decay)
