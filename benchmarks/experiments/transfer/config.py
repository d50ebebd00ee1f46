"""The methods of the transfer benchmarks, the pairs of network and data that they train, variants and presets."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim import SGD, Optimizer

import mrreg
from benchmarks.core.comparison import Search
from benchmarks.experiments.transfer import data as transfer_data
from benchmarks.experiments.transfer.models import SOURCES, Name, parts

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
PAPER = (FULL, MULTIRATE, MULTIRATE_BLOCK, FC, BLOCK, GRADUAL)
FEW = (FULL, MULTIRATE, BLOCK)  # for which there is time on a CPU


def optimizer(net: nn.Module, network: Name, method: Method, lr: float, weight_decay: float) -> Optimizer:
    """Return SGD with momentum, or MultirateSGD where some parts are slow; what does not train gets no gradient."""
    options: dict[str, Any] = {"lr": lr, "momentum": MOMENTUM, "weight_decay": weight_decay}
    if method.fast is not None:
        groups = mrreg.split(net, fast=parts(network, method.fast))
        return mrreg.MultirateSGD(groups, k=K, slow_lr=method.slow_lr, model=net, **options)
    unfreeze(net, network, 1 if method.gradual else method.trained)
    return SGD(net.parameters(), **options)


def unfreeze(net: nn.Module, network: Name, count: int | None) -> None:
    """Let the last `count` parts require gradients and no others; all of them if None."""
    net.requires_grad_(count is None)
    for module in parts(network, count or 0):
        net.get_submodule(module).requires_grad_(True)


def stages(network: Name) -> dict[str, Method]:
    """Return what trains at each stage of gradual unfreezing, under the name of the timing."""
    count = len(SOURCES[network].parts)
    return {stage(n, count): Method(trained=n if n < count else None) for n in range(1, count + 1)}


def stage(trained: int, count: int) -> str:
    """Return the name under which the cost of training the last so many of all parts stands."""
    return {1: FC, 2: BLOCK, count: FULL}.get(trained, f"last {trained} parts only")


@dataclass(frozen=True)
class Variant:
    """A comparison that differs from the paper's main one."""

    decay: bool = False  # the learning rate falls linearly to 0
    weight_decay: float = 0.0  # as in torch.optim.SGD
    own: bool = False  # every method has the learning rate that a search found for it
    few: bool = False  # it has `few` seeds, and not `seeds`


CONSTANT, OWN, DECAY, WEIGHT_DECAY = "constant lr", "own lr", "linear decay", "weight decay"
VARIANTS = {
    CONSTANT: Variant(),
    OWN: Variant(own=True),
    DECAY: Variant(decay=True, few=True),
    WEIGHT_DECAY: Variant(weight_decay=5e-4, few=True),
}


@dataclass(frozen=True)
class Pair:
    """A pretrained network, what it is fine-tuned on, and in which variants."""

    network: Name
    data: transfer_data.Name
    variants: tuple[str, ...] = tuple(VARIANTS)

    @property
    def title(self) -> str:
        return f"{SOURCES[self.network].title} on {transfer_data.TITLES[self.data]}"

    def methods(self, variant: str) -> tuple[str, ...]:
        """Return who takes part in a variant."""
        own = (MULTIRATE_HELD,) if VARIANTS[variant].own else ()
        return (*(FEW if self.network == "mobilenet" and variant != CONSTANT else PAPER), *own)

    @property
    def classes(self) -> int:
        return transfer_data.CLASSES[self.data]


MOBILENET = Pair("mobilenet", "cifar10")
RESNET34 = Pair("resnet34", "cifar10")
RESNET50 = Pair("resnet50", "cifar100", (CONSTANT,))
RESNET20 = Pair("resnet20", "mnist", (CONSTANT, OWN))


@dataclass(frozen=True)
class TransferConfig:
    """The pairs that are compared, and their images; the last `validation` training images are for the search alone."""

    seeds: int
    few: int
    pairs: tuple[Pair, ...]
    epochs: int
    pool: int | None = None  # training images that are read; None is all
    images: int | None = None  # drawn anew for each seed; None is all but those for validation
    test_images: int | None = None
    validation: int = 2000
    pixels: int = 224
    batch: int = 32
    lr: float = 0.001
    decay_lr: float = 0.005
    lrs: tuple[float, ...] = (0.001, 0.002, 0.004, 0.008)
    points: int = 5
    timings: int = 15

    def epoch(self, pair: Pair) -> int:
        """Return the steps of an epoch; the last, short batch is left out."""
        return (self.images or (self.pool or transfer_data.IMAGES[pair.data]) - self.validation) // self.batch


PRESETS = {
    "smoke": TransferConfig(
        seeds=1, few=1, pairs=(MOBILENET,), epochs=1, pool=114, images=64, test_images=50, validation=50, pixels=32,
        lrs=(0.001,), points=1, timings=1,
    ),
    "cpu": TransferConfig(
        seeds=5, few=3, pairs=(MOBILENET,), epochs=4, images=640, test_images=1000, validation=1000, pixels=96,
        batch=16, points=3,
    ),
    "gpu": TransferConfig(seeds=5, few=3, pairs=(RESNET34, RESNET50), epochs=5, images=10_000),
    "paper": TransferConfig(seeds=20, few=20, pairs=(RESNET34, RESNET50), epochs=10),
}  # fmt: skip


def search(pair: Pair, lrs: Sequence[float]) -> Search:
    """Return the search for everyone's learning rate."""
    grid = {method: [{"lr": lr} for lr in lrs] for method in pair.methods(OWN)}
    return Search(grid, trial=lambda name, options: f"{pair.title}: search, lr {options['lr']:g}: {name}")
