"""A wide MLP on few rows of a table: the cut of diamonds.

The table is ggplot2's, as plotnine ships it: 53,940 stones with price, weight, sizes, colour and clarity.
"""

from dataclasses import dataclass
from functools import cache

import torch
from torch import nn
from torch.optim import Optimizer

from benchmarks.core.comparison import Job
from benchmarks.core.training import Loop
from benchmarks.experiments.regularizers import Regularizers, Tried
from benchmarks.experiments.thin.draws import Parts, drawn
from benchmarks.experiments.thin.mlp import network, shares

COLUMNS, CLASSES = 22, 5


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


def loop(config: Config, model: nn.Module, optimizer: Optimizer, seed: int, job: Job) -> Loop:
    return drawn(table(config.test), (config.rows, config.validation, config.batch), model, optimizer, seed, job)


@cache
def table(test: int) -> Parts:
    """Return rows of the table in an order drawn once, standardized; the last ones are to test on.

    Stones that are listed more than once, at different prices, are there once.
    """
    from pandas import get_dummies
    from plotnine.data import diamonds

    stones = diamonds.drop_duplicates(diamonds.columns.difference(["cut", "price"])).sample(frac=1, random_state=0)
    y = torch.tensor(stones.pop("cut").cat.codes.to_numpy(copy=True)).long()
    x = torch.tensor(get_dummies(stones, dtype=float).to_numpy())
    trained = x[:-test]
    x = ((x - trained.mean(0)) / trained.std(0)).float()
    return x[:-test], y[:-test], x[-test:], y[-test:]


STUDY = Regularizers(
    "regularizers-table",
    {
        "smoke": Config(2, 4, 2, 60, 16, 20, 50, 50, 1),
        "cpu": Config(3, 300, width=512),
        "gpu": Config(10, 5000, 10, 5000, 4096, 256),
    },
    lambda config: f"diamonds, {config.rows:,} rows, MLP",
    network=lambda config, method, _: network(method, (COLUMNS, config.width, CLASSES)),
    example=lambda config, _: torch.rand(2, COLUMNS),
    loop=loop,
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
