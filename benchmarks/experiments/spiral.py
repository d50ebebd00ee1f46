"""Slow biases on the 4-turn spiral (the paper's appendix "Slow Biases", three figures).

Differs from the paper: momentum is 0. The paper names 0.9 as its default, but with it neither SGD nor slow biases
learn this spiral at these step sizes; both are in the record.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Optimizer

import mrreg
from benchmarks.core.comparison import Comparison, Job
from benchmarks.core.sections import Claim, Curves, Section, Shown, gain, rows
from benchmarks.core.study import Study
from benchmarks.core.training import Batch, Loop, accuracy, drawn_batches

TURNS, RADIUS, POWER, NOISE = 4, 2.0, 0.5, 0.02
WIDTH, BATCH = 100, 25
H, K = 0.2, 5  # the paper's h = 1 and k = 5: steps of h / k
DATA_STREAM = 10_000  # added to a seed, so that data and initial weights do not come from the same random numbers


def spirals(points: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw noisy points of two interleaved spirals, the second the negative of the first; (N, 2) and labels (N,).

    Half of the points each, at a t^p (cos 2 pi n t^p, sin 2 pi n t^p) with t uniform on [0, 1).
    """
    label = (torch.arange(points) >= points // 2).float()
    t = torch.rand(points, generator=generator) ** POWER
    angle = 2 * math.pi * TURNS * t
    curve = RADIUS * t * (1 - 2 * label) * torch.stack([angle.cos(), angle.sin()])
    return curve.mT + NOISE * torch.randn(points, 2, generator=generator), label


def network(seed: int) -> nn.Sequential:
    """Return the 2-100-1 network with torch's initial weights for a seed; its output is a logit."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1), nn.Flatten(0))


def _slow(layers: str | None = None, momentum: float = 0.0, **options: Any) -> Callable[[nn.Module], Optimizer]:
    """Put the biases of all layers, or of one, on the slow time scale."""
    return lambda net: mrreg.MultirateSGD(mrreg.biases(net, layers), lr=H, k=K, momentum=momentum, model=net, **options)


def _larger_rate(net: nn.Module) -> Optimizer:
    """Let the biases move every step, like the weights, but with the step size of a whole cycle."""
    fast, slow = mrreg.biases(net)
    return SGD([{"params": fast["params"]}, {"params": slow["params"], "lr": K * H}], lr=H)


ALL, INPUT, OUTPUT = "multirate, all biases", "multirate, input biases", "multirate, output bias"
LARGER, FROZEN, REST = "biases at 5h every step", "biases frozen, same step size", "multirate, no drift"
METHODS: dict[str, Callable[[nn.Module], Optimizer]] = {
    "SGD": lambda net: SGD(net.parameters(), lr=H),
    ALL: _slow(),
    INPUT: _slow("0"),
    FROZEN: _slow(drift=False, slow_lr="per_gradient"),
    LARGER: _larger_rate,
    REST: _slow(drift=False),
    OUTPUT: _slow("2"),
    "SGD, momentum 0.9": lambda net: SGD(net.parameters(), lr=H, momentum=0.9),
    "multirate, momentum 0.9": _slow(momentum=0.9),
}


@dataclass(frozen=True)
class SpiralConfig:
    """The number of networks, the data and epochs they get, and the methods."""

    seeds: int
    epochs: int
    every: int  # epochs between two evaluations
    methods: tuple[str, ...] = tuple(METHODS)
    train: int = 500
    test: int = 1000


PRESETS = {
    "smoke": SpiralConfig(seeds=2, epochs=4, every=2),
    "demo": SpiralConfig(seeds=3, epochs=1200, every=50, methods=("SGD", ALL)),
    "cpu": SpiralConfig(seeds=20, epochs=4000, every=40),
    "paper": SpiralConfig(seeds=5, epochs=4000, every=40),
}


def comparisons(config: SpiralConfig) -> list[Comparison[Callable[[nn.Module], Optimizer]]]:
    steps = tuple(epoch * (config.train // BATCH) for epoch in range(config.every, config.epochs + 1, config.every))
    methods = {name: METHODS[name] for name in config.methods}
    return [Comparison(methods, config.seeds, steps, splits=("test", "fitted"))]


def build(config: SpiralConfig, method: Callable[[nn.Module], Optimizer], seed: int, job: Job) -> Loop:
    generator = torch.Generator().manual_seed(DATA_STREAM + seed)
    x, y = (part.to(job.device) for part in spirals(config.train, generator))
    test: list[Batch] = [tuple(part.to(job.device) for part in spirals(config.test, generator))]
    net = network(seed).to(job.device)
    batches = drawn_batches(x, y, BATCH, generator)
    right = partial(accuracy, decide=lambda logits: (logits > 0).float())
    fitted: list[Batch] = [(x, y)]
    splits = {"test": lambda: test, "fitted": lambda: fitted}
    return Loop(net, method(net), batches, splits, right, F.binary_cross_entropy_with_logits)


NOTE = (
    "The paper names neither the momentum here (its default, 0.9, is tried too) nor the number of points and epochs "
    "(500 and 4,000). Bands: smallest to largest of the seeds."
)


def _figure(item: str, title: str, methods: Sequence[str], claims: tuple[Claim, ...], beside: Sequence[str] = (),
            **more: Any) -> Section:  # fmt: skip
    """Return the curves of the paper's figure, what stands beside them in the table."""
    shown = dict(zip(methods, methods, strict=True))
    curves = Curves(shown, "accuracy by step", "step (20 an epoch)", "test accuracy [%]", x="step", ylim=(45, 95))
    return Section(
        item, title, "%", 1, rows=rows((*methods, *beside), "accuracy"), claims=claims, plots=(curves,),
        full=frozenset({"cpu", "paper"}),  # every epoch, point and network is there on a CPU too
        **more,
    )  # fmt: skip


def _better(one: str, other: str, by: float = 0.0) -> Claim:
    more = f" by more than {by:g} points" if by else ""
    return Claim(f"{one}: better than {other}{more}", gain(one, other, "accuracy"), above=by)


SECTIONS = (
    _figure("Figure A11", "Slow biases on the 4-turn spiral", ("SGD", ALL), (_better(ALL, "SGD", by=5),),
            beside=("SGD, momentum 0.9", "multirate, momentum 0.9"),
            note=NOTE),
    _figure("Figure A12", "Slow biases on the spiral: time scale, step size, or both?", ("SGD", ALL, LARGER, FROZEN),
            (_better(ALL, LARGER), _better(ALL, FROZEN)), beside=(REST,)),
    _figure("Figure A13", "Slow biases on the spiral: which biases?", ("SGD", ALL, INPUT, OUTPUT),
            (_better(INPUT, "SGD", by=5), _better(INPUT, OUTPUT))),
)  # fmt: skip
STUDY = Study("spiral", PRESETS, comparisons, build, data="points of two spirals")
SHOWN = [
    Shown("", {each: each for each in METHODS}, task=task, against=[pair])
    for task, pair in (
        ("4-turn spiral, slow biases", (ALL, "SGD")),
        ("4-turn spiral, momentum 0.9", ("multirate, momentum 0.9", "SGD, momentum 0.9")),
    )
]
BENCHMARK = STUDY.benchmark(SECTIONS, SHOWN)
