"""Seconds of training with weight masks against the same network without them, nn.Dropout beside them."""

from functools import partial

import torch
from torch import nn

import mrreg
from benchmarks.core.sections import Claim, Section
from benchmarks.experiments.speed.common import Case, Network, SpeedConfig, beside_dropout, less, section

WIDTH, SEQUENCE = 200, 35  # of the encoder, as in language models on Penn Treebank


def encoder(case: Case, way: str) -> nn.Module:
    """Return two encoder layers."""
    dropout = 0.2 if way == "dropout" else 0.0
    layers = [nn.TransformerEncoderLayer(WIDTH, 2, WIDTH, dropout, batch_first=True) for _ in range(2)]
    if way == "masked":
        layers = [mrreg.MultirateMask(layer, p=0.2, k=case.k) for layer in layers]
    return nn.Sequential(*layers)


def mlp(inputs: int, hidden: int, outputs: int, case: Case, way: str) -> nn.Module:
    """Return one hidden layer, with the shares of the paper's MNIST experiment."""
    first, second = nn.Linear(inputs, hidden), nn.Linear(hidden, outputs)
    if way == "masked":
        first, second = mrreg.MultirateMask(first, p=0.2, k=case.k), mrreg.MultirateMask(second, p=0.5, k=case.k)
    if way == "dropout":
        return nn.Sequential(nn.Dropout(0.2), first, nn.ReLU(), nn.Dropout(0.5), second)
    return nn.Sequential(first, nn.ReLU(), second)


SMALL, MLP, LARGE, ENCODER = (
    "4-8-4, batch 8", "784-800-10, batch 128", "784-800-10, batch 512", f"2 encoder layers of {WIDTH}, batch 20",
)  # fmt: skip
NETWORKS = {
    SMALL: Network(partial(mlp, 4, 8, 4), lambda: torch.randn(8, 4)),
    MLP: Network(partial(mlp, 784, 800, 10), lambda: torch.randn(128, 784)),
    LARGE: Network(partial(mlp, 784, 800, 10), lambda: torch.randn(512, 784)),
    ENCODER: Network(encoder, lambda: torch.randn(20, SEQUENCE, WIDTH)),
}
CPU = (
    Case(MLP, target=1.40, cycles=10),
    Case(LARGE, target=1.25, cycles=3),
    Case(ENCODER, target=1.10),
    Case(MLP, "SGD with momentum", 1.50, cycles=10),
    Case(MLP, "AdamW", 1.50, cycles=10),
    Case(MLP, target=1.25, backend="inductor", cycles=10),
    Case(LARGE, target=1.25, backend="inductor", cycles=3),
)
GPU = tuple(
    Case(network, optimizer, backend=backend, cycles=10)
    for backend in (None, "inductor")
    for network, optimizer in [
        (MLP, "SGD"), (LARGE, "SGD"), (MLP, "SGD with momentum"), (MLP, "AdamW"), (ENCODER, "SGD")
    ]
)  # fmt: skip
SMOKE = (Case(SMALL), Case(SMALL, "AdamW"), Case(SMALL, backend="aot_eager"))
PRESETS = {"smoke": SpeedConfig(2, SMOKE), "cpu": SpeedConfig(25, CPU), "gpu": SpeedConfig(21, GPU)}


def _section(where: str, cases: tuple[Case, ...], preset: str, note: str) -> Section:
    claims = [
        Claim(f"{case.name}: masks cost less than nn.Dropout", less(case.name, "masked", "dropout"))
        for case in cases
        if case.target and case.optimizer == "SGD"
    ]
    title = f"Seconds of training with weight masks (k = 5) over plain training, {where}"
    return section(title, cases, [preset], "masked", note, label="masks", claims=claims)


SECTIONS = (
    _section("CPU", CPU, "cpu", "Weight masks compute everything and cost a little; below 1 would be faster."),
    _section("GPU", GPU, "gpu", "Nothing is promised here."),
)
BENCHMARK = beside_dropout("speed masks", "masked", PRESETS, NETWORKS, SECTIONS)
