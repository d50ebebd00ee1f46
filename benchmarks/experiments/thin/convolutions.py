"""A small ResNet and a plain CNN on few images of CIFAR-10: thin channels, Dropout2d, stochastic depth, weight decay.

Goes beyond the paper. Every method has as many trials at the baseline's seconds. The learning rate falls to zero at the
end of a training, so that equal steps and equal seconds are two trainings.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

import torch
from torch import nn

import mrreg
from benchmarks.core.comparison import Comparison, Costs, Job, Options, Search, named
from benchmarks.core.sections import Section
from benchmarks.core.study import Study
from benchmarks.core.study_sections import Shown, study_sections
from benchmarks.core.training import Loop
from benchmarks.experiments.thin.images import SIZE, Draw, loop
from benchmarks.experiments.thin.networks import cnn, resnet

Network = Literal["ResNet", "CNN"]
MOMENTUM = 0.9


@dataclass(frozen=True)
class Method:
    """One way to regularize: channels by example, whole branches by example, thin, or weight decay.

    `hidden` is the share of the CNN's hidden units that dropout and thin leave out.
    """

    kind: Literal["none", "dropout", "depth", "thin"] = "none"
    p: float = 0.0
    hidden: float = 0.5
    k: int = 5
    boost: float | None = None
    weight_decay: float = 5e-4


NONE, DROPOUT, THIN = "none", "dropout", "thin, k = 5"
METHODS = {
    NONE: Method(),
    DROPOUT: Method("dropout"),
    THIN: Method("thin"),
    "thin, k = 5, boost 1": Method("thin", boost=1.0),
    "weight decay": Method(),
    "stochastic depth": Method("depth"),
}
FEW = tuple(METHODS)[:4]
GRID: Mapping[str, list[Mapping[str, Any]]] = {
    DROPOUT: [{"p": 0.1}, {"p": 0.25}],
    THIN: [{"p": 0.125}, {"p": 0.25}],
    "weight decay": [{"weight_decay": 2e-3}, {"weight_decay": 1e-2}],
    "stochastic depth": [{"p": 0.1}, {"p": 0.3}],
}


@dataclass(frozen=True)
class Config:
    """How many images and how long; `seeds` are those of the comparison."""

    seeds: int
    steps: int
    draw: Draw
    width: int = 64
    blocks: int = 1
    networks: Mapping[Network, tuple[str, ...]] = field(default_factory=lambda: {"ResNet": FEW, "CNN": FEW})
    lr: float = 0.05
    timings: int = 5
    trials: int = 3  # seeds of each option


PRESETS = {
    "smoke": Config(2, 4, Draw(40, 160, 50, 50, 20), 16, timings=1),
    "cpu": Config(5, 400, Draw(1000), networks={"ResNet": FEW}, timings=10),
    "gpu": Config(
        10, 10_000, Draw(5000, validation=5000, test=None), 128, 3, {"ResNet": tuple(METHODS), "CNN": FEW}, timings=10
    ),
}


def comparisons(config: Config) -> list[Comparison[Method]]:
    """Return one comparison for each network."""

    def search(network: Network, names: tuple[str, ...]) -> Search:
        grid = {name: GRID[name] for name in names if name in GRID}
        like = {name: THIN for name in names if name.startswith(THIN + ",")}

        def trial(name: str, options: Options) -> str:
            return f"search {network}: {name}, {named(options)}"

        return Search(grid, like, trial, config.trials, at="seconds")

    return [
        Comparison(
            {name: METHODS[name] for name in names}, config.seeds, (config.steps,),
            Costs(NONE, config.timings, name=f"costs {network}"), search(network, names), setting=network,
            prefix=f"{network}: ", scheduled=True,
        )
        for network, names in config.networks.items()
    ]  # fmt: skip


def build(config: Config, method: Method, seed: int, job: Job) -> Loop:
    """Return the training of a method."""
    torch.manual_seed(seed)
    model = network(config, method, job.setting).to(job.device)
    optimizer = torch.optim.SGD(model.parameters(), config.lr, MOMENTUM, weight_decay=method.weight_decay)
    if method.kind == "thin":
        mrreg.attach(optimizer, model, seed=seed)
    torch.manual_seed(seed)  # dropout draws from the global generator
    return loop(config.draw, model, optimizer, seed, job)


def network(config: Config, method: Method, which: Network) -> nn.Module:
    """Return the network of a method; the weights of all methods are the same for a seed."""
    dropout, depth = (method.p if method.kind == kind else 0.0 for kind in ("dropout", "depth"))
    sizes = (config.width, config.blocks)
    if which == "ResNet":
        model = resnet(*sizes, dropout, depth)
    else:
        model = cnn(*sizes, dropout, method.hidden if dropout else 0.0)
    if method.kind != "thin":
        return model
    groups = plan(which, sizes, method.p, method.hidden)
    return mrreg.thin(model, k=method.k, boost=method.boost, plan=groups)[0]


@cache
def plan(which: Network, sizes: tuple[int, int], p: float, hidden: float) -> mrreg.ThinReport:
    """Return the groups of units, found once for all trainings."""
    model, shares = (
        (resnet(*sizes), {"channels": p}) if which == "ResNet" else (cnn(*sizes), {"channels": p, "hidden": hidden})
    )
    return mrreg.thin(model, shares, example_inputs=torch.rand(2, 3, SIZE, SIZE))[1]


def sections(network: Network) -> tuple[Section, ...]:
    """Return what is shown of one network."""
    shown = Shown(
        f"{network} on few images of CIFAR-10",
        {name: f"{network}: {name}" for name in METHODS},
        [*((THIN, name) for name in METHODS if name != THIN), (DROPOUT, NONE)],
        words="more accurate than",
        note="64 and 128 channels with BatchNorm (`gpu`: 128 and 256) on images at 16 x 16, 1,000 training images "
        "drawn for each seed (`gpu`: 5,000), no augmentation, SGD with momentum 0.9, lr 0.05, cosine schedule. Two "
        "values each of what a method has are tried on validation images at equal seconds. Accuracy at the end.",
    )
    return study_sections(shown, baseline=NONE)


STUDY = Study("thin-convolutions", PRESETS, comparisons, build, data="CIFAR-10")
BENCHMARK = STUDY.benchmark([part for name in ("ResNet", "CNN") for part in sections(name)])
