"""A wide MLP on few rows of a table: the cut of diamonds, or what houses cost.

The tables are ggplot2's, as plotnine ships them: 53,940 stones with price, weight, sizes, colour and clarity; 7,126
months of cities in Texas with sales and listings of houses.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from benchmarks.core.comparison import Job
from benchmarks.core.training import Loop
from benchmarks.data.images import Images
from benchmarks.experiments.regularizers import Regularizers, Tried
from benchmarks.experiments.thin.draws import drawn
from benchmarks.experiments.thin.mlp import network, shares

Read = Callable[[], tuple[Any, Any]]
"""Returns the frame of a table and the numbers of the classes, in the same order."""
COLUMNS, CLASSES = 22, 5
HOUSES_COLUMNS, HOUSES_CLASSES = 5, 5


@dataclass(frozen=True)
class Config:
    """How many rows and how long; `seeds` are those of the comparison."""

    seeds: int
    steps: int
    points: int = 5
    rows: int = 1000
    width: int = 1000
    batch: int = 100
    validation: int = 5000
    test: int = 10_000
    timings: int = 8


def loop(read: Read, config: Config, model: nn.Module, optimizer: Optimizer, seed: int, job: Job) -> Loop:
    sizes = (config.rows, config.validation, config.batch)
    return drawn(table(read, config.test), sizes, model, optimizer, seed, job)


@cache
def table(read: Read, test: int) -> Images:
    """Return rows of a table, standardized; the last ones are to test on."""
    from pandas import get_dummies

    rows, classes = read()
    y = torch.tensor(classes.to_numpy(copy=True)).long()
    x = torch.tensor(get_dummies(rows, dtype=float).to_numpy())
    trained = x[:-test]
    x = ((x - trained.mean(0)) / trained.std(0)).float()
    return Images(x[:-test], y[:-test], x[-test:], y[-test:])


def stones() -> tuple[Any, Any]:
    """Return diamonds and their cut; those listed more than once, at different prices, are there once."""
    from plotnine.data import diamonds

    found = diamonds.drop_duplicates(diamonds.columns.difference(["cut", "price"])).sample(frac=1, random_state=0)
    return found.drop(columns="cut"), found["cut"].cat.codes


def houses() -> tuple[Any, Any]:
    """Return months of cities, and in which fifth the median price of a house is."""
    from pandas import qcut
    from plotnine.data import txhousing

    found = txhousing.dropna().sample(frac=1, random_state=0)
    return found[["year", "month", "sales", "listings", "inventory"]], qcut(found["median"], 5, labels=False)


STUDY = Regularizers(
    "regularizers-table",
    {
        "smoke": Config(2, 4, 2, 60, 16, 20, 50, 50, 1),
        "cpu": Config(5, 300, width=512),
        "gpu": Config(10, 5000, 10, 5000, 4096, 256),
    },
    lambda config: f"diamonds, {config.rows:,} rows, MLP",
    network=lambda config, method, _: network(method, (COLUMNS, config.width, CLASSES)),
    example=lambda config, _: torch.rand(2, COLUMNS),
    loop=partial(loop, stones),
    tried=Tried(
        (1e-4, 3e-4, 1e-3, 3e-3),
        (3.0, 10.0),
        ((0.0, 0.5), (0.1, 0.5)),
        (shares(0.0, 0.5), shares(0.1, 0.25)),
        quarter=True,
    ),
    note="Two hidden layers of 512 (`gpu`: 4,096), 1,000 rows (`gpu`: 5,000) drawn for each seed, batch 100, AdamW. "
    "Validation is on 5,000 other rows.",
    data="diamonds (ggplot2)",
)
BENCHMARK = STUDY.benchmark()
HOUSES = replace(
    STUDY,
    name="regularizers-housing",
    presets={
        "smoke": STUDY.presets["smoke"],
        "cpu": Config(5, 900, 9, width=512, validation=2000, test=3000),
        "gpu": Config(10, 5000, 10, 2000, 4096, 256, 2000, 3000),
    },
    task=lambda config: f"houses in Texas, {config.rows:,} rows, MLP",
    network=lambda config, method, _: network(method, (HOUSES_COLUMNS, config.width, HOUSES_CLASSES)),
    example=lambda config, _: torch.rand(2, HOUSES_COLUMNS),
    loop=partial(loop, houses),
    tried=replace(STUDY.tried, decays=(0.3, 3.0), quarter=False),
    note="As for diamonds (`gpu`: 2,000 rows). Validation is on 2,000 other rows.",
    data="txhousing (ggplot2)",
)
BENCHMARK_HOUSES = HOUSES.benchmark()
