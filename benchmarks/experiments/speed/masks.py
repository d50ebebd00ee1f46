"""Seconds of training with weight masks against the same network without them, nn.Dropout beside them."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

import mrreg
from benchmarks.core.runner import Benchmark
from benchmarks.core.sections import Claim, Section
from benchmarks.experiments.speed.common import Call, SpeedConfig, beside_dropout, less, runs, section, training

K = 5
WIDTH, SEQUENCE = 200, 35  # of the encoder, as in language models on Penn Treebank


@dataclass(frozen=True)
class Case:
    """A network, how it is trained, and the ratio to plain training that the library promises not to exceed."""

    network: str  # widths, or "2 encoder layers of 200"
    batch: int  # examples a step, or sequences
    target: float | None  # None promises nothing
    optimizer: str = "SGD"
    compiled: bool = False  # run all of them under torch.compile
    cycles: int = 1  # timed at once

    @property
    def name(self) -> str:
        return f"{self.network}, batch {self.batch}, {self.optimizer}{', compiled' if self.compiled else ''}"

    @property
    def encoder(self) -> bool:
        return "encoder" in self.network


MLP, ENCODER = "784-800-10", f"2 encoder layers of {WIDTH}"
CPU = (
    Case(MLP, 128, 1.40, cycles=10),
    Case(MLP, 512, 1.25, cycles=3),
    Case(ENCODER, 20, 1.10),
    Case(MLP, 128, 1.50, "SGD with momentum", cycles=10),
    Case(MLP, 128, 1.50, "AdamW", cycles=10),
    Case(MLP, 128, 1.25, compiled=True, cycles=10),
    Case(MLP, 512, 1.25, compiled=True, cycles=3),
)
GPU = tuple(
    Case(network, batch, None, optimizer, compiled, cycles=10)
    for compiled in (False, True)
    for network, batch, optimizer in [
        (MLP, 128, "SGD"), (MLP, 512, "SGD"), (MLP, 128, "SGD with momentum"), (MLP, 128, "AdamW"), (ENCODER, 20, "SGD")
    ]
)  # fmt: skip
SMOKE = (Case("4-8-4", 8, None), Case("4-8-4", 8, None, "AdamW"), Case("4-8-4", 8, None, compiled=True))
PRESETS = {"smoke": SpeedConfig(2, SMOKE), "cpu": SpeedConfig(25, CPU), "gpu": SpeedConfig(21, GPU)}


def network(case: Case, way: str) -> nn.Module:
    """Return two encoder layers, or one hidden layer with the shares of the paper's MNIST experiment."""
    if case.encoder:
        dropout = 0.2 if way == "dropout" else 0.0
        layers = [nn.TransformerEncoderLayer(WIDTH, 2, WIDTH, dropout, batch_first=True) for _ in range(2)]
        if way == "masked":
            layers = [mrreg.MultirateMask(layer, p=0.2, k=K) for layer in layers]
        return nn.Sequential(*layers)
    inputs, hidden, outputs = map(int, case.network.split("-"))
    first, second = nn.Linear(inputs, hidden), nn.Linear(hidden, outputs)
    if way == "masked":
        first, second = mrreg.MultirateMask(first, p=0.2, k=K), mrreg.MultirateMask(second, p=0.5, k=K)
    if way == "dropout":
        return nn.Sequential(nn.Dropout(0.2), first, nn.ReLU(), nn.Dropout(0.5), second)
    return nn.Sequential(first, nn.ReLU(), second)


def trainer(case: Case, way: str, features: Tensor) -> Call:
    torch.manual_seed(0)
    model = network(case, way).to(features.device)
    backend = ("aot_eager" if case.network == "4-8-4" else "inductor") if case.compiled else None
    return training(model, case.optimizer, features, K * case.cycles, driven=way == "masked", backend=backend)


def inputs(case: Case) -> Tensor:
    return torch.randn(case.batch, *((SEQUENCE, WIDTH) if case.encoder else (int(case.network.split("-")[0]),)))


def _section(where: str, cases: tuple[Case, ...], preset: str, note: str) -> Section:
    claims = [
        Claim(f"{case.name}: masks cost less than nn.Dropout", less(case.name, "masked", "dropout"))
        for case in cases
        if case.target and case.optimizer == "SGD"
    ]
    title = f"Seconds of training with weight masks (k = {K}) over plain training, {where}"
    return section(title, cases, [preset], "masked", note, label="masks", claims=claims)


SECTIONS = (
    _section("CPU", CPU, "cpu", "Weight masks compute everything and cost a little; below 1 would be faster."),
    _section("GPU", GPU, "gpu", "Nothing is promised here."),
)
BENCHMARK = Benchmark("speed masks", PRESETS, runs, beside_dropout("masked", inputs, trainer), SECTIONS)
