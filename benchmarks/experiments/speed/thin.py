"""Seconds of training thin networks against the same networks whole, nn.Dropout beside them."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

import mrreg
from benchmarks.core.runner import Benchmark
from benchmarks.core.sections import Section
from benchmarks.experiments.speed.common import Call, SpeedConfig, at_most, beside_dropout, runs, section, training
from benchmarks.experiments.speed.thin_networks import NETWORKS


@dataclass(frozen=True)
class Case:
    """A network, how it is trained, and the ratio to plain training that it should not exceed."""

    network: str
    optimizer: str
    target: float | None = None  # None where nothing is aimed at
    p: float = 0.5  # share of units that are absent
    k: int = 5  # steps per cycle
    compiled: bool = False  # run all of them under torch.compile
    cycles: int = 1  # timed at once

    @property
    def name(self) -> str:
        """What the report calls it."""
        options = f", p = {self.p}" * (self.p != 0.5) + f", k = {self.k}" * (self.k != 5) + ", compiled" * self.compiled
        return f"{self.network}, {self.optimizer}{options}"


TARGETS = {
    "encoder block 256/1024": (0.66, 0.68),
    "BERT 4 x 256": (0.68, 0.80),
    "two ResNet blocks of 64": (0.68, 0.68),
    "nn.TransformerEncoderLayer": (0.70, 0.70),
    "784-1000-1000-10, batch 128": (0.62, 0.70),
    "784-1000-1000-10, batch 512": (0.50, 0.55),
}
AIMED = tuple(
    Case(network, optimizer, target)
    for network, targets in TARGETS.items()
    for optimizer, target in zip(("SGD", "AdamW"), targets, strict=True)
)
OTHERS = (
    Case("encoder block 256/1024", "SGD", 0.82, p=0.25),
    Case("BERT 4 x 256", "SGD", p=0.25),
    Case("784-1000-1000-10, batch 128", "SGD", p=0.25),
    *(Case(network, "SGD", k=10) for network in TARGETS),
    Case("encoder block 256/1024", "SGD", compiled=True),
    Case("784-1000-1000-10, batch 512", "SGD", compiled=True),
)
GPU = tuple(
    Case(network, optimizer, compiled=compiled, cycles=5)
    for compiled in (False, True)
    for network in TARGETS
    for optimizer in ("SGD", "AdamW")
)
PRESETS = {
    "smoke": SpeedConfig(2, (Case("8-16-16-4", "SGD"), Case("8-16-16-4", "AdamW", p=0.25, k=2))),
    "cpu": SpeedConfig(11, AIMED + OTHERS),
    "gpu": SpeedConfig(21, GPU),
}


def trainer(case: Case, way: str, inputs: Tensor) -> Call:
    """Return a call that trains for the cycles of a case."""
    torch.manual_seed(0)
    model: nn.Module = NETWORKS[case.network].build(case.p if way == "dropout" else 0.0).to(inputs.device)
    if way == "thin":
        model, _ = mrreg.thin(model, p=case.p, k=case.k, example_inputs=inputs[:2])
    backend = "inductor" if case.compiled else None
    return training(model, case.optimizer, inputs, case.k * case.cycles, driven=way == "thin", backend=backend)


def inputs(case: Case) -> Tensor:
    """Return the batch of a case."""
    return NETWORKS[case.network].inputs()


def _section(title: str, cases: tuple[Case, ...], preset: str) -> Section:
    note = "Seconds of whole cycles of k = 5 at p = 0.5, unless a row says otherwise; below 1 is faster than plain."
    claims = [claim for case in cases for claim in at_most(case, "thin")]
    return section(title, cases, [preset], {"thin": "thin", "dropout": "nn.Dropout"}, claims, note)


SECTIONS = (
    _section("Seconds of training thin networks over plain training, one CPU thread", AIMED, "cpu"),
    _section("The same with other p and k, and compiled", OTHERS, "cpu"),
    _section("Seconds of training thin networks over plain training, GPU", GPU, "gpu"),
)

BENCHMARK = Benchmark("speed thin", PRESETS, runs, beside_dropout("thin", inputs, trainer), SECTIONS)
