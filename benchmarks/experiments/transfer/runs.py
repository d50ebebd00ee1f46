"""What the transfer benchmark runs: pairs of network and data, variants, presets, and the names of the runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean
from typing import Literal

from benchmarks.core.records import Record
from benchmarks.core.runner import Run
from benchmarks.experiments.transfer import data as transfer_data
from benchmarks.experiments.transfer import models as transfer_models
from benchmarks.experiments.transfer.training import (
    BLOCK,
    FC,
    FULL,
    GRADUAL,
    MULTIRATE,
    MULTIRATE_BLOCK,
    MULTIRATE_HELD,
)

TUNING = 1000  # the seed of the trials, so that they share none with the comparison
PAPER = (FULL, MULTIRATE, MULTIRATE_BLOCK, FC, BLOCK, GRADUAL)
FEW = (FULL, MULTIRATE, BLOCK)  # for which there is time on a CPU


@dataclass(frozen=True)
class Variant:
    """How a comparison differs from the paper's main one.

    Args:
        decay: The learning rate falls linearly to 0.
        weight_decay: As in torch.optim.SGD.
        own: Every method has the learning rate that a search found for it.
        few: Whether it has `few` seeds, and not `seeds`.
    """

    decay: bool = False
    weight_decay: float = 0.0
    own: bool = False
    few: bool = False


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

    network: transfer_models.Name
    data: transfer_data.Name
    variants: tuple[str, ...] = tuple(VARIANTS)

    @property
    def title(self) -> str:
        return f"{transfer_models.SOURCES[self.network].title} on {transfer_data.TITLES[self.data]}"

    def methods(self, variant: str) -> tuple[str, ...]:
        """Who takes part in a variant."""
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
    """What is compared on how many images; the last `validation` training images are for the search alone."""

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


@dataclass(frozen=True)
class Job:
    """What one run does: the timing, a trial of a learning rate, or one seed of a comparison."""

    what: Literal["cost", "trial", "compare"]
    pair: Pair
    method: str = ""
    variant: str = ""
    lr: float = 0.0


def runs(config: TransferConfig) -> list[Run]:
    """The timings; then variant by variant, the main one first, its search if it has one and its seeds in turn."""
    found = [Run(cost_key(pair), (0,), Job("cost", pair)) for pair in config.pairs]
    for name, variant in VARIANTS.items():
        pairs = [pair for pair in config.pairs if name in pair.variants]
        if variant.own:
            for pair, lr in product(pairs, config.lrs):
                jobs = [Job("trial", pair, method, lr=lr) for method in pair.methods(name)]
                found.extend(Run(trial_key(pair, job.method, lr), (TUNING,), job) for job in jobs)
        for seed, pair in product(range(min(config.few, config.seeds) if variant.few else config.seeds), pairs):
            jobs = [Job("compare", pair, method, name) for method in pair.methods(name)]
            found.extend(Run(key(pair, name, job.method), (seed,), job) for job in jobs)
    return found


def cost_key(pair: Pair) -> str:
    """The timing in the record."""
    return f"{pair.title}: cost"


def trial_key(pair: Pair, method: str, lr: float) -> str:
    """A trial's method in the record."""
    return f"{pair.title}: search, lr {lr:g}: {method}"


def key(pair: Pair, variant: str, method: str) -> str:
    """A method of a comparison in the record."""
    return f"{pair.title}: {variant}: {method}"


def validation(record: Record, pair: Pair, method: str, lr: float) -> float:
    """Mean validation accuracy of a trial; 0 where it has not run."""
    found = record.numbers(trial_key(pair, method, lr), "validation accuracy").values()
    return fmean(found) if found else 0.0


def chosen(record: Record, pair: Pair, method: str) -> float:
    """The learning rate with which a method does best on the validation images; the smaller one of equals."""
    tried: Sequence[float] = record.config["lrs"]
    return max(tried, key=lambda lr: validation(record, pair, method, lr))
