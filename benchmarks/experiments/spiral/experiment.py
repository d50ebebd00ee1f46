"""Slow biases on the 4-turn spiral (the paper's appendix "Slow Biases", three figures).

Differs from the paper: momentum is 0. The paper names 0.9 as its default, but with it neither SGD nor slow biases
learn this spiral at these step sizes; both are in the record.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import SGD, Optimizer

import mrreg
from benchmarks.core.records import Result
from benchmarks.core.runner import Benchmark, Context, Run
from benchmarks.experiments.spiral.report import sections
from benchmarks.experiments.spiral.task import Data, Networks, accuracy, train

H, K = 0.2, 5  # the paper's h = 1 and k = 5: steps of h / k

GRID, EDGE = 50, 2.2  # decision regions: so many points a side, from -EDGE to EDGE


@dataclass(frozen=True)
class SpiralConfig:
    """The number of networks, the data and epochs they get, and the methods."""

    seeds: int
    epochs: int
    every: int  # epochs between two evaluations
    methods: tuple[str, ...]
    train: int = 500
    test: int = 1000


def _slow(layers: str | None = None, momentum: float = 0.0, **options: Any) -> Callable[[Networks], Optimizer]:
    """The biases of all layers, or of one, on the slow time scale."""
    return lambda nets: mrreg.MultirateSGD(mrreg.biases(nets, layers), lr=H, k=K, momentum=momentum, **options)


def _larger_rate(nets: Networks) -> Optimizer:
    """The biases move every step, like the weights, but with the step size of a whole cycle."""
    layers = (nets.hidden, nets.output)
    weights: dict[str, Any] = {"params": [layer.weight for layer in layers]}
    biases: dict[str, Any] = {"params": [layer.bias for layer in layers], "lr": K * H}
    return SGD([weights, biases], lr=H)


METHODS: dict[str, Callable[[Networks], Optimizer]] = {
    "SGD": lambda nets: SGD(nets.parameters(), lr=H),
    "multirate, all biases": _slow(),
    "multirate, input biases": _slow("hidden"),
    "biases frozen, same step size": _slow(drift=False, slow_lr="per_gradient"),
    "biases at 5h every step": _larger_rate,
    "multirate, no drift": _slow(drift=False),
    "multirate, output bias": _slow("output"),
    "SGD, momentum 0.9": lambda nets: SGD(nets.parameters(), lr=H, momentum=0.9),
    "multirate, momentum 0.9": _slow(momentum=0.9),
}
DRAWN = ("SGD", "multirate, all biases")  # those whose decision regions are kept

PRESETS = {
    "smoke": SpiralConfig(seeds=2, epochs=4, every=2, methods=tuple(METHODS)),
    "demo": SpiralConfig(seeds=5, epochs=2000, every=50, methods=DRAWN),
    "cpu": SpiralConfig(seeds=20, epochs=4000, every=40, methods=tuple(METHODS)),
    "gpu": SpiralConfig(seeds=100, epochs=4000, every=40, methods=tuple(METHODS)),
    "paper": SpiralConfig(seeds=5, epochs=4000, every=40, methods=tuple(METHODS)),
}


def runs(config: SpiralConfig) -> list[Run]:
    """One run a method: all seeds are computed in one batch."""
    return [Run(method, tuple(range(config.seeds))) for method in config.methods]


def execute(config: SpiralConfig, run: Run, context: Context) -> Sequence[Result]:
    """Train the networks of all seeds with one method."""
    data = Data(run.seeds, config.train, config.test, context.device)
    nets = Networks(run.seeds).to(context.device)
    curves: list[list[float]] = []  # one list of accuracies an evaluation

    def watch(epoch: int) -> None:
        if epoch % config.every == 0:
            curves.append(accuracy(nets, data.test_x, data.test_y))

    train(nets, METHODS[run.method](nets), data, config.epochs, watch)
    fitted = accuracy(nets, data.x, data.y)
    epochs = list(range(config.every, config.epochs + 1, config.every))
    results: list[dict[str, Any]] = [
        {
            "accuracy": curve[-1],
            "training accuracy": on_training,
            "accuracy per evaluation": list(curve),
            "epoch": epochs,
        }
        for curve, on_training in zip(zip(*curves, strict=True), fitted, strict=True)
    ]
    if run.method in DRAWN:
        results[0] |= {"regions": regions(nets, len(run.seeds))}
    return results


def regions(nets: Networks, seeds: int) -> list[list[float]]:
    """The mean over seeds of the predicted probability on a grid over the plane; rows from below."""
    axis = torch.linspace(-EDGE, EDGE, GRID)
    plane = torch.cartesian_prod(axis, axis).flip(1).to(nets.hidden.weight.device)
    with torch.no_grad():
        mean = nets(plane.expand(seeds, -1, -1)).sigmoid().mean(0)
    return [[round(p, 3) for p in row] for row in mean.view(GRID, GRID).tolist()]


BENCHMARK = Benchmark("spiral", PRESETS, runs, execute, sections(DRAWN, EDGE), "points of two spirals")
