"""A small vision transformer on few images of CIFAR-10: thin sub-networks, dropout, stochastic depth, weight decay.

Goes beyond the paper. Every method that has options gets as many trials at the baseline's seconds. The learning rate
falls to zero at the end of a training, so that equal steps and equal seconds are two trainings.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import torch
from torch import nn

import mrreg
from benchmarks.core.comparison import Comparison, Costs, Job, Search
from benchmarks.core.study import Study
from benchmarks.core.study_sections import Shown, study_sections
from benchmarks.core.training import Loop
from benchmarks.experiments.thin.images import SIZE, Draw, loop
from benchmarks.experiments.thin.networks import VisionTransformer


@dataclass(frozen=True)
class Method:
    """One way to regularize: by torch's own dropout, whole branches by example, thin, or weight decay."""

    kind: Literal["none", "dropout", "depth", "thin"] = "none"
    p: float = 0.0
    heads: float = 0.25
    k: int = 5
    boost: float | None = None
    weight_decay: float = 0.01


NONE, DROPOUT, THIN, DEPTH = "none", "dropout", "thin, k = 5", "stochastic depth"
METHODS = {NONE: Method(), DROPOUT: Method("dropout"), THIN: Method("thin")}
MORE = {DEPTH: Method("depth"), "weight decay": Method(), "thin, k = 5, boost 1": Method("thin", boost=1.0)}
GRID: Mapping[str, list[Mapping[str, Any]]] = {
    DROPOUT: [{"p": 0.1}, {"p": 0.2}],
    THIN: [{"p": 0.25, "heads": 0.25}, {"p": 0.5, "heads": 0.25}],
    DEPTH: [{"p": 0.1}, {"p": 0.3}],
    "weight decay": [{"weight_decay": 0.1}, {"weight_decay": 1.0}],
}


@dataclass(frozen=True)
class Config:
    """How many images and how long; `seeds` are those of the comparison."""

    seeds: int
    steps: int
    draw: Draw
    width: int = 128
    heads: int = 4
    layers: int = 2
    lr: float = 1e-3
    timings: int = 5
    every_method: bool = False


PRESETS = {
    "smoke": Config(2, 4, Draw(40, 160, 50, 50, 20), 8, 4, 1, timings=1),
    "cpu": Config(8, 500, Draw(1000)),
    "gpu": Config(10, 10_000, Draw(5000, validation=5000, test=None), 256, 8, 6, timings=10, every_method=True),
}


def comparisons(config: Config) -> list[Comparison[Method]]:
    """Return none, dropout and thin, then what else there is, with the same timing of all."""
    rest = MORE if config.every_method else {}

    def compared(methods: Mapping[str, Method], others: Mapping[str, Method]) -> Comparison[Method]:
        grid = {name: GRID[name] for name in methods if name in GRID}
        like = {name: THIN for name in methods if name.startswith(THIN + ",")}
        return Comparison(
            methods, config.seeds, (config.steps,), Costs(NONE, config.timings, also=others),
            Search(grid, like, at="seconds"), scheduled=True,
        )  # fmt: skip

    return [compared(METHODS, rest), *([compared(rest, METHODS)] if rest else [])]


def build(config: Config, method: Method, seed: int, job: Job) -> Loop:
    """Return the training of a method."""
    torch.manual_seed(seed)
    model = network(config, method).to(job.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr, weight_decay=method.weight_decay)
    if method.kind == "thin":
        mrreg.attach(optimizer, model, seed=seed)
    torch.manual_seed(seed)  # dropout draws from the global generator
    return loop(config.draw, model, optimizer, seed, job)


def network(config: Config, method: Method) -> nn.Module:
    """Return the transformer of a method; the weights of all methods are the same for a seed."""
    sizes = (config.width, config.heads, config.layers)
    dropout, depth = (method.p if method.kind == kind else 0.0 for kind in ("dropout", "depth"))
    model = VisionTransformer(*sizes, dropout, depth)
    if method.kind != "thin":
        return model
    return mrreg.thin(model, k=method.k, boost=method.boost, plan=plan(sizes, method.p, method.heads))[0]


@cache
def plan(sizes: tuple[int, int, int], p: float, heads: float) -> mrreg.ThinReport:
    """Return the groups of units, found once for all trainings."""
    images = torch.rand(2, 3, SIZE, SIZE)
    return mrreg.thin(VisionTransformer(*sizes), {"hidden": p, "heads": heads}, example_inputs=images)[1]


SHOWN = Shown(
    "Vision transformer on few images of CIFAR-10",
    {name: name for name in METHODS | MORE},
    [*((THIN, other) for other in (DROPOUT, NONE, *MORE)), (DROPOUT, NONE), (DEPTH, NONE)],
    words="more accurate than",
    note="2 layers of width 128 with 4 heads on patches of 4 x 4 of images at 16 x 16 (`gpu`: 6 of 256 with 8), 1,000 "
    "training images drawn for each seed (`gpu`: 5,000), no augmentation, AdamW, cosine schedule. Two values each "
    "of what a method has are tried on validation images at equal seconds. Accuracy at the end of each training.",
)
STUDY = Study("thin-vit", PRESETS, comparisons, build, data="CIFAR-10")
BENCHMARK = STUDY.benchmark(study_sections(SHOWN, baseline=NONE))
