"""Thin training beside dropout and none: a wide MLP on few digits, accuracy over seconds."""

from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch
from torch import Tensor, nn

import mrreg
from benchmarks.core.comparison import Comparison, Costs, Job, Search, evenly
from benchmarks.core.study import Study
from benchmarks.core.study_sections import Shown
from benchmarks.core.training import Batch, Batches, Loop, shuffled
from benchmarks.experiments.demo.images import CLASSES, PIXELS, digits, split, splits

NONE, DROPOUT, THIN = "no regularization", "dropout", "thin training"


@dataclass(frozen=True)
class Method:
    """What is left out of the hidden layers, and how much of it."""

    kind: Literal["none", "dropout", "thin"] = "none"
    p: float = 0.5
    k: int = 5


METHODS = {NONE: Method(), DROPOUT: Method("dropout"), THIN: Method("thin")}


@dataclass(frozen=True)
class Config:
    """How much is trained on how much; `seeds` are those of the comparison."""

    seeds: int
    steps: int
    points: int = 12
    images: int = 300
    width: int = 1000
    lr: float = 0.3
    p: tuple[float, ...] = (0.3, 0.5)
    timings: int = 5


PRESETS = {"demo": Config(6, 120), "smoke": Config(2, 4, 2, width=16, timings=1)}


def comparisons(config: Config) -> list[Comparison[Method]]:
    """Return the comparison; dropout and thin training get as many trials."""
    grid = {name: [{"p": p} for p in config.p] for name in (DROPOUT, THIN)}
    return [
        Comparison(
            METHODS,
            config.seeds,
            evenly(config.steps, config.points),
            Costs(NONE, config.timings),
            Search(grid, at="seconds"),
        )
    ]


def build(config: Config, method: Method, seed: int, job: Job) -> Loop:
    """Return the training of one network on its own draw of the images."""
    x, y = digits()
    chosen, *_ = split(seed, config.images)
    torch.manual_seed(seed)
    model = network(method, config.width)
    optimizer = torch.optim.SGD(model.parameters(), lr=config.lr)
    if method.kind == "thin":
        mrreg.attach(optimizer, model, seed=seed)
    torch.manual_seed(seed)  # dropout draws from the global generator

    def take(index: Tensor) -> Batch:
        return x[chosen[index]], y[chosen[index]]

    batches = Batches(shuffled(config.images, config.images), take, torch.Generator().manual_seed(seed))
    return Loop(model, optimizer, batches, splits(seed, config.images))


def network(method: Method, width: int) -> nn.Sequential:
    """Return two hidden layers; the weights of all methods are the same for a seed."""
    drop = [nn.Dropout(method.p)] if method.kind == "dropout" else []
    model = nn.Sequential(
        nn.Linear(PIXELS, width), nn.ReLU(), *drop, nn.Linear(width, width), nn.ReLU(), *drop, nn.Linear(width, CLASSES)
    )
    return mrreg.thin(model, k=method.k, plan=plan(method.p, width))[0] if method.kind == "thin" else model


@cache
def plan(p: float, width: int) -> mrreg.ThinReport:
    """Return the groups of units, found once for all trainings."""
    return mrreg.thin(network(Method(), width), p, example_inputs=torch.rand(2, PIXELS))[1]


SHOWN = Shown(
    "Thin training, dropout, no regularization",
    {name: name for name in METHODS},
    [(THIN, DROPOUT), (THIN, NONE), (DROPOUT, NONE)],
    words="more accurate than",
    note="64-1000-1000-10 on 300 of scikit-learn's digits, all in one batch, SGD. p is the better of two on "
    "validation images, for both methods. 900 test images.",
)
STUDY = Study("demo-thin", PRESETS, comparisons, build, data="scikit-learn's digits")
