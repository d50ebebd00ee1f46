"""Seconds of training with masks against the same network without them, nn.Dropout beside them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

import mrreg
from benchmarks.core import stats
from benchmarks.core.records import Record
from benchmarks.core.runner import Benchmark
from benchmarks.core.sections import Claim, Section, Values
from benchmarks.experiments.speed.common import Call, SpeedConfig, at_most, beside_dropout, runs, section, training

K = 5
SEQUENCE = 35  # words, as in language models on Penn Treebank


@dataclass(frozen=True)
class Case:
    """A network, how it is trained, and the ratio to plain training that the library promises not to exceed."""

    network: str
    batch: int  # examples a step, or sequences
    target: float | None  # None promises nothing
    optimizer: str = "SGD"
    compiled: bool = False  # run all of them under torch.compile
    cycles: int = 1  # timed at once

    @property
    def name(self) -> str:
        return f"{self.network}, batch {self.batch}, {self.optimizer}{', compiled' if self.compiled else ''}"


def classifier(way: str, widths: tuple[int, int, int] = (784, 800, 10)) -> nn.Module:
    """One hidden layer; masks and dropout with the shares of the paper's MNIST experiment."""
    first, second = nn.Linear(*widths[:2]), nn.Linear(*widths[1:])
    if way == "masked":
        return nn.Sequential(mrreg.MultirateMask(first, p=0.2, k=K), nn.ReLU(), mrreg.MultirateMask(second, p=0.5, k=K))
    if way == "dropout":
        return nn.Sequential(nn.Dropout(0.2), first, nn.ReLU(), nn.Dropout(0.5), second)
    return nn.Sequential(first, nn.ReLU(), second)


def pair(way: str, widths: tuple[int, int, int]) -> nn.Module:
    """Two layers that drop half of the units between them."""
    first, second = nn.Linear(*widths[:2]), nn.Linear(*widths[1:])
    if way == "dropout":
        return nn.Sequential(first, nn.ReLU(), nn.Dropout(0.5), second)
    plain = nn.Sequential(first, nn.ReLU(), second)
    return mrreg.MultirateMask(plain, p=0.5, k=K, structure="hidden") if way == "masked" else plain


def encoder(way: str, width: int, p: float, structure: Literal["weight", "hidden"]) -> nn.Module:
    """Two Transformer layers: dropout where they have it, or masks on all weights or on the feed-forward half alone."""
    dropout = p if way == "dropout" else 0.0
    layers = [nn.TransformerEncoderLayer(width, 2, width, dropout, batch_first=True) for _ in range(2)]
    if way == "masked":
        return nn.Sequential(*(mrreg.MultirateMask(layer, p=p, k=K, structure=structure) for layer in layers))
    return nn.Sequential(*layers)


@dataclass(frozen=True)
class Network:
    """A network: built plain, masked or with dropout; the shape of one example's input, and the compiler's backend."""

    build: Callable[[str], nn.Module]
    example: tuple[int, ...]
    backend: str = "inductor"


NETWORKS = {
    "784-800-10": Network(classifier, (784,)),
    "2 encoder layers of 200": Network(partial(encoder, width=200, p=0.2, structure="weight"), (SEQUENCE, 200)),
    "784-800-784 hidden": Network(partial(pair, widths=(784, 800, 784)), (784,)),
    "512-2048-512 hidden": Network(partial(pair, widths=(512, 2048, 512)), (512,)),
    "2 encoder layers of 200 hidden": Network(partial(encoder, width=200, p=0.5, structure="hidden"), (SEQUENCE, 200)),
    "4-8-4 hidden": Network(partial(pair, widths=(4, 8, 4)), (4,), backend="aot_eager"),
}

WEIGHTS = (
    Case("784-800-10", 128, 1.40, cycles=10),
    Case("784-800-10", 512, 1.25, cycles=3),
    Case("2 encoder layers of 200", 20, 1.10),
    Case("784-800-10", 128, 1.50, "SGD with momentum", cycles=10),
    Case("784-800-10", 128, 1.50, "AdamW", cycles=10),
    Case("784-800-10", 128, 1.25, compiled=True, cycles=10),
    Case("784-800-10", 512, 1.25, compiled=True, cycles=3),
)
COMPACT = (
    Case("784-800-784 hidden", 512, 0.75),
    Case("512-2048-512 hidden", 2048, 0.70),
    Case("2 encoder layers of 200 hidden", 20, 1.0),
    Case("784-800-784 hidden", 512, None, compiled=True),
)
GPU = tuple(
    Case(network, batch, None, optimizer, compiled, cycles=10)
    for compiled in (False, True)
    for network, batch, optimizer in [
        ("784-800-10", 128, "SGD"),
        ("784-800-10", 512, "SGD"),
        ("784-800-10", 128, "SGD with momentum"),
        ("784-800-10", 128, "AdamW"),
        ("2 encoder layers of 200", 20, "SGD"),
        ("784-800-784 hidden", 512, "SGD"),
        ("512-2048-512 hidden", 2048, "SGD"),
        ("512-2048-512 hidden", 32768, "SGD"),
        ("2 encoder layers of 200 hidden", 20, "SGD"),
    ]
)
SMOKE = (
    Case("784-800-10", 8, None),
    Case("4-8-4 hidden", 8, None, "AdamW"),
    Case("4-8-4 hidden", 8, None, compiled=True),
)
PRESETS = {"smoke": SpeedConfig(2, SMOKE), "cpu": SpeedConfig(25, WEIGHTS + COMPACT), "gpu": SpeedConfig(21, GPU)}


def trainer(case: Case, way: str, features: Tensor) -> Call:
    """Return a call that trains for the cycles of a case."""
    torch.manual_seed(0)
    network = NETWORKS[case.network]
    model = network.build(way).to(features.device)
    backend = network.backend if case.compiled else None
    return training(model, case.optimizer, features, K * case.cycles, driven=way == "masked", backend=backend)


def inputs(case: Case) -> Tensor:
    """Return the batch of a case."""
    return torch.randn(case.batch, *NETWORKS[case.network].example)


def _below_dropout(case: Case) -> Values:
    def values(record: Record) -> list[float]:
        return stats.paired(record.numbers(case.name, "dropout"), record.numbers(case.name, "masked"))

    return values


def _section(title: str, cases: tuple[Case, ...], preset: str, note: str) -> Section:
    claims = [claim for case in cases for claim in at_most(case, "masked")] + [
        Claim(f"{case.name}: masks cost less than nn.Dropout", _below_dropout(case))
        for case in cases
        if case.target and case.optimizer == "SGD"
    ]
    return section(title, cases, [preset], {"masked": "masks", "dropout": "nn.Dropout"}, claims, note)


SECTIONS = (
    _section(
        f"Seconds of training with weight masks (k = {K}) over plain training, CPU", WEIGHTS, "cpu",
        "Weight masks compute everything and cost a little; below 1 would be faster than plain.",
    ),
    _section(
        f"Seconds of training with compact masks (k = {K}, half of the hidden units) over plain training, CPU",
        COMPACT, "cpu",
        "Masks of whole units leave the dropped units out of the computation; below 1 they are faster than plain.",
    ),
    _section(
        f"Seconds of training with masks (k = {K}) over plain training, GPU", GPU, "gpu",
        "Nothing is promised here; the networks named hidden have compact masks, the others weight masks.",
    ),
)  # fmt: skip

BENCHMARK = Benchmark("speed masks", PRESETS, runs, beside_dropout(("masked",), inputs, trainer), SECTIONS)
