"""Patch-augmented CIFAR-10 (the paper's appendix of that name, after Li et al. 2019, arXiv:1907.04595).

A noisy patch of 7 x 7 pixels lies in the middle of most images. All patches share one pattern z with entries from
N(0, 1.5625); class i has its own, much weaker one, zeta_i, with entries from U[-0.1, 0.1], which is added or taken away
at random. Pixels are normalized first, so that zero is the mean colour:

- patch-free: x;
- patch only: 0, and z + s zeta_y in the middle, where s = +-1.75 a and a is from U[0, 1);
- both: x, and z + s zeta_y added in the middle, where s = +-1.

Which image is what, and its s, are drawn once: it is a data set. The published code of Li et al.
(cwein3/large-lr-code) draws them anew whenever an image is shown, and puts the patch in the place of the pixels.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.data.cifar import CLASSES, normal
from benchmarks.data.images import Images

SIZE, SIDE, START = 7, 32, 12  # of the patch; of the image; first row and column of the patch
Z_STD, ZETA, ONLY = 1.25, 0.1, 1.75  # sqrt(1.5625); the patterns' bounds; the strength of a patch without image
FREE_SHARE, ONLY_SHARE = 0.2, 0.2  # of all images; of the others

SETS = ("clean", "patched", "patch only")


@dataclass(frozen=True)
class Patterns:
    """z, (3, 7, 7), and zeta, (10, 3, 7, 7): the same for training and test images."""

    z: Tensor
    zeta: Tensor

    @classmethod
    def draw(cls, generator: torch.Generator) -> "Patterns":
        z = Z_STD * torch.randn(3, SIZE, SIZE, generator=generator)
        zeta = ZETA * (2 * torch.rand(len(CLASSES), 3, SIZE, SIZE, generator=generator) - 1)
        return cls(z, zeta)

    def to(self, device: torch.device) -> "Patterns":
        return Patterns(self.z.to(device), self.zeta.to(device))


@dataclass(frozen=True)
class Patched:
    """Images with, without, or only a patch."""

    x: Tensor  # images in bytes, (n, 3, 32, 32)
    y: Tensor  # their classes, (n)
    image: Tensor  # one where there is an image, else zero, (n)
    patch: Tensor  # one where there is a patch, else zero, (n)
    shift: Tensor  # the s of each patch, (n)
    patterns: Patterns  # z and zeta
    side: int = SIDE  # how many pixels of a side are shown, those in the middle; even

    def batch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """The images of an index as a network sees them, (len(index), 3, side, side), and their classes."""
        index = index.to(self.y.device)
        image, patch, shift = (each[index].view(-1, 1, 1, 1) for each in (self.image, self.patch, self.shift))
        y = self.y[index]
        small = patch * (self.patterns.z + shift * self.patterns.zeta[y])
        end = SIDE - START - SIZE
        whole = image * normal(self.x[index]) + F.pad(small, (START, end, START, end))
        shown = slice((SIDE - self.side) // 2, (SIDE + self.side) // 2)
        return whole[:, :, shown, shown], y

    def to(self, device: torch.device) -> "Patched":
        names = ("x", "y", "image", "patch", "shift", "patterns")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})


def training_set(data: Images, patterns: Patterns, generator: torch.Generator, side: int = SIDE) -> Patched:
    """20 % of the images patch-free, each other patch only with probability 0.2, else with both."""
    count = len(data.y)
    patch = torch.ones(count)
    patch[torch.randperm(count, generator=generator)[: round(FREE_SHARE * count)]] = 0
    only = (torch.rand(count, generator=generator) < ONLY_SHARE) & (patch == 1)
    return Patched(data.x, data.y, 1 - only.float(), patch, _shift(only, generator), patterns, side)


def evaluation_sets(
    data: Images, patterns: Patterns, generator: torch.Generator, side: int = SIDE
) -> dict[str, Patched]:
    """All test images without patch, all with image and patch, and all with the patch only."""
    one, zero = torch.ones(len(data.test_y)), torch.zeros(len(data.test_y))
    kinds = {"clean": (one, zero), "patched": (one, one), "patch only": (zero, one)}
    return {
        name: Patched(data.test_x, data.test_y, image, patch, _shift(image == 0, generator), patterns, side)
        for name, (image, patch) in kinds.items()
    }


def _shift(only: Tensor, generator: torch.Generator) -> Tensor:
    sign = 2.0 * torch.randint(2, only.shape, generator=generator) - 1
    strength = ONLY * torch.rand(only.shape, generator=generator)
    return sign * torch.where(only, strength, 1.0)
