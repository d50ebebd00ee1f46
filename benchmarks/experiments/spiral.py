"""Slow biases on the 4-turn spiral (the paper's appendix "Slow Biases", three figures).

Differs from the paper: momentum is 0. The paper names 0.9 as its default, but with it neither SGD nor slow biases
learn this spiral at these step sizes; both are in the record.

A step on one 2-100-1 network costs mostly dispatch, so the networks of all seeds are stacked along a first dimension:
one batched product a layer, one optimizer over the stacked tensors. The loss is the sum over seeds of each seed's
mean, so every network gets exactly the gradient that it would get alone.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Optimizer

import mrreg
from benchmarks.core.comparison import Comparison, Job
from benchmarks.core.sections import Claim, Curves, Section, Shown, gain, rows
from benchmarks.core.study import Study
from benchmarks.core.training import Batch, Batches, Loop, percent_right

TURNS, RADIUS, POWER, NOISE = 4, 2.0, 0.5, 0.02
WIDTH, BATCH = 100, 25
H, K = 0.2, 5  # the paper's h = 1 and k = 5: steps of h / k
DATA_STREAM = 10_000  # added to a seed, so that data and initial weights do not come from the same random numbers


class StackedLinear(nn.Module):
    """As many linear layers as there are seeds, in one batched product."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.stack([layer.weight.detach() for layer in layers]))  # (S, out, in)
        self.bias = nn.Parameter(torch.stack([layer.bias.detach() for layer in layers]))  # (S, out)

    def forward(self, x: Tensor) -> Tensor:  # (S, N, in) -> (S, N, out)
        """Apply layer s to the batch of seed s."""
        return torch.baddbmm(self.bias.unsqueeze(1), x, self.weight.mT)


class Generators:
    """A generator for each seed, saved and restored together as if they were one."""

    def __init__(self, seeds: Sequence[int]) -> None:
        self.each = [torch.Generator().manual_seed(seed) for seed in seeds]

    def permutations(self, size: int) -> Tensor:  # (S, size)
        """Return a random order for each seed."""
        return torch.stack([torch.randperm(size, generator=generator) for generator in self.each])

    def get_state(self) -> list[Tensor]:
        return [generator.get_state() for generator in self.each]

    def set_state(self, states: Sequence[Tensor]) -> None:
        for generator, state in zip(self.each, states, strict=True):
            generator.set_state(state)


def spirals(points: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw noisy points of two interleaved spirals, the second the negative of the first; (N, 2) and labels (N,).

    Half of the points each, at a t^p (cos 2 pi n t^p, sin 2 pi n t^p) with t uniform on [0, 1).
    """
    label = (torch.arange(points) >= points // 2).float()
    t = torch.rand(points, generator=generator) ** POWER
    angle = 2 * math.pi * TURNS * t
    curve = RADIUS * t * (1 - 2 * label) * torch.stack([angle.cos(), angle.sin()])
    return curve.mT + NOISE * torch.randn(points, 2, generator=generator), label


def draw(generators: Generators, train: int, test: int) -> list[Tensor]:
    """Return training points of every seed, (S, N, 2), with labels, (S, N), and test points with labels."""
    drawn = [(*spirals(train, generator), *spirals(test, generator)) for generator in generators.each]
    return [torch.stack(part) for part in zip(*drawn, strict=True)]


def batches(x: Tensor, y: Tensor, generators: Generators) -> Batches:
    """Return mini-batches, (S, 25, 2) and (S, 25): every seed in its own order, a short last one left out."""

    def order(generators: Generators) -> list[Batch]:
        index = generators.permutations(y.shape[1])[:, : y.shape[1] // BATCH * BATCH].to(x.device)
        drawn = x.take_along_dim(index.unsqueeze(2), 1), y.take_along_dim(index, 1)
        return list(zip(*(part.split(BATCH, 1) for part in drawn), strict=True))  # type: ignore[no-untyped-call]

    return Batches(order, lambda batch: batch, generators)


def network(seed: int, width: int = WIDTH) -> nn.Sequential:
    """Return the plain 2-100-1 network with torch's initial weights for one seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, 1))


class Networks(nn.Module):
    """The networks of all seeds; layer names `hidden` and `output`."""

    def __init__(self, seeds: Sequence[int], width: int = WIDTH) -> None:
        super().__init__()
        plain = [network(seed, width) for seed in seeds]
        self.hidden = StackedLinear([net[0] for net in plain])  # type: ignore[misc]
        self.output = StackedLinear([net[2] for net in plain])  # type: ignore[misc]

    def forward(self, x: Tensor) -> Tensor:  # (S, N, 2) -> (S, N)
        """Return logits."""
        logits: Tensor = self.output(self.hidden(x).relu())
        return logits.squeeze(2)


def loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the sum over seeds of each seed's mean binary cross-entropy."""
    return F.binary_cross_entropy_with_logits(logits, labels, reduction="sum") / labels.shape[1]


def accuracy(networks: nn.Module, points: Iterable[Batch]) -> list[float]:
    """Return the percentage of points on the right side, one figure a seed."""
    return [round(share, 3) for share in percent_right(networks, points, decide=lambda out: (out > 0).float()).tolist()]


def _slow(layers: str | None = None, momentum: float = 0.0, **options: Any) -> Callable[[Networks], Optimizer]:
    """Put the biases of all layers, or of one, on the slow time scale."""

    def make(nets: Networks) -> Optimizer:
        groups = mrreg.biases(nets, layers)
        with warnings.catch_warnings():  # biases are not slow to save time
            warnings.filterwarnings("ignore", "MultirateSGD: the fast part comes before", mrreg.NoEffectWarning)
            return mrreg.MultirateSGD(groups, lr=H, k=K, momentum=momentum, model=nets, **options)

    return make


def _larger_rate(nets: Networks) -> Optimizer:
    """Let the biases move every step, like the weights, but with the step size of a whole cycle."""
    layers = (nets.hidden, nets.output)
    weights: dict[str, Any] = {"params": [layer.weight for layer in layers]}
    biases: dict[str, Any] = {"params": [layer.bias for layer in layers], "lr": K * H}
    return SGD([weights, biases], lr=H)


ALL, INPUT, OUTPUT = "multirate, all biases", "multirate, input biases", "multirate, output bias"
LARGER, FROZEN, REST = "biases at 5h every step", "biases frozen, same step size", "multirate, no drift"
METHODS: dict[str, Callable[[Networks], Optimizer]] = {
    "SGD": lambda nets: SGD(nets.parameters(), lr=H),
    ALL: _slow(),
    INPUT: _slow("hidden"),
    FROZEN: _slow(drift=False, slow_lr="per_gradient"),
    LARGER: _larger_rate,
    REST: _slow(drift=False),
    OUTPUT: _slow("output"),
    "SGD, momentum 0.9": lambda nets: SGD(nets.parameters(), lr=H, momentum=0.9),
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
    "demo": SpiralConfig(seeds=5, epochs=2000, every=50, methods=("SGD", ALL)),
    "cpu": SpiralConfig(seeds=20, epochs=4000, every=40),
    "gpu": SpiralConfig(seeds=100, epochs=4000, every=40),
    "paper": SpiralConfig(seeds=5, epochs=4000, every=40),
}


def comparisons(config: SpiralConfig) -> list[Comparison[Callable[[Networks], Optimizer]]]:
    """Return all methods; the networks of all seeds are trained together."""
    steps = tuple(epoch * (config.train // BATCH) for epoch in range(config.every, config.epochs + 1, config.every))
    methods = {name: METHODS[name] for name in config.methods}
    return [Comparison(methods, config.seeds, steps, splits=("test", "fitted"), together=True)]


def build(config: SpiralConfig, method: Callable[[Networks], Optimizer], seed: int, job: Job) -> Loop:
    generators = Generators([DATA_STREAM + each for each in job.seeds])
    x, y, test_x, test_y = (part.to(job.device) for part in draw(generators, config.train, config.test))
    nets = Networks(job.seeds).to(job.device)
    splits = {"test": lambda: [(test_x, test_y)], "fitted": lambda: [(x, y)]}
    return Loop(nets, method(nets), batches(x, y, generators), splits, accuracy, loss)


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
        full=frozenset({"cpu", "gpu", "paper"}),  # every epoch, point and network is there on a CPU too
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
