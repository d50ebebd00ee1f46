"""A wide MLP on few rows of a table: the cut of diamonds.

The table is ggplot2's, as plotnine ships it: 53,940 stones with price, weight, sizes, colour and clarity. The learning
rate falls to zero at the end of a training, so that equal steps and equal seconds are two trainings.
"""

from dataclasses import dataclass
from functools import cache

import torch
from torch import nn
from torch.optim import Optimizer

from benchmarks.core.comparison import Job
from benchmarks.core.training import Loop
from benchmarks.experiments.regularizers import DECAY, NONE, USUAL, Regularizers, Setting
from benchmarks.experiments.thin.draws import Parts, drawn
from benchmarks.experiments.thin.mlp import network, shares

COLUMNS, CLASSES = 22, 5


@dataclass(frozen=True)
class Config:
    """How many rows and how long; `seeds` are those of the comparison."""

    seeds: int
    steps: int
    rows: int = 1000
    width: int = 1000
    batch: int = 100
    lr: float = 1e-3
    validation: int = 5000
    test: int = 10_000
    timings: int = 10


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


SHARES = [{"p": (p, 0.5)} for p in (0.0, 0.1, 0.2)]
BENCHMARK = Regularizers(
    "thin-tabular",
    {
        "smoke": Config(2, 4, 60, 16, 20, validation=50, test=50, timings=1),
        "cpu": Config(10, 500),
        "gpu": Config(20, 5000, 5000, 4096, 256),
    },
    lambda config: [
        Setting((config.steps,), USUAL, task=f"diamonds, {config.rows:,} rows, MLP",
                title="Wide MLP on few rows of a table (cut of diamonds)"),
    ],
    network=lambda config, method, _: network(method, (COLUMNS, config.width, CLASSES)),
    example=lambda config: torch.rand(2, COLUMNS),
    shares=shares,
    optimizer=lambda config, model, decay: torch.optim.AdamW(
        model.parameters(), config.lr, **{"weight_decay": 0.01, **decay}
    ),
    loop=loop,
    grid={name: SHARES for name in USUAL if name not in (NONE, DECAY)}
    | {DECAY: [{"weight_decay": each} for each in (3.0, 10.0, 30.0)]},
    note="22-1000-1000-5, 1,000 rows drawn for each seed (`gpu`: 4096 wide, 5,000 rows), AdamW, cosine schedule. Three "
    "shares of columns and hidden units, and three weight decays, are tried on 5,000 other rows at equal seconds. "
    "Accuracy at the end of each training.",
    data="diamonds (ggplot2)",
    scheduled=True,
).benchmark()  # fmt: skip
