"""A wide MLP on few rows of a table: the cut of diamonds by thin sub-networks, dropout, weight decay, all tuned.

Goes beyond the paper. The table is ggplot2's, as plotnine ships it: 53,940 stones with price, weight, sizes, colour and
clarity. Every method gets as many trials at the baseline's seconds. The learning rate falls to zero at the end of a
training, so that equal steps and equal seconds are two trainings.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

import mrreg
from benchmarks.core.comparison import Comparison, Costs, Job, Search
from benchmarks.core.study import Study
from benchmarks.core.study_sections import Shown, study_sections
from benchmarks.core.training import Loop
from benchmarks.experiments.thin.draws import Parts, drawn
from benchmarks.experiments.thin.mlp import Method, network

COLUMNS, CLASSES = 22, 5
NONE, DROPOUT, DECAY, THIN = "none", "dropout", "weight decay", "thin, k = 5"
METHODS = {
    NONE: Method(weight_decay=0.01),
    DROPOUT: Method("dropout", weight_decay=0.01),
    THIN: Method("thin", weight_decay=0.01),
    DECAY: Method(),
    f"{THIN}, boost 1": Method("thin", boost=1.0, weight_decay=0.01),
}
SHARES: list[Mapping[str, Any]] = [{"p": (p, 0.5)} for p in (0.0, 0.1, 0.2)]
GRID: Mapping[str, list[Mapping[str, Any]]] = {
    name: SHARES if name != DECAY else [{"weight_decay": each} for each in (3.0, 10.0, 30.0)]
    for name in METHODS
    if name != NONE
}


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


PRESETS = {
    "smoke": Config(2, 4, 60, 16, 20, validation=50, test=50, timings=1),
    "cpu": Config(10, 500),
    "gpu": Config(20, 5000, 5000, 4096, 256),
}


def comparisons(config: Config) -> list[Comparison[Method]]:
    """Return one comparison of all methods."""
    return [
        Comparison(
            METHODS, config.seeds, (config.steps,), Costs(NONE, config.timings), Search(GRID, at="seconds"),
            scheduled=True,
        )
    ]  # fmt: skip


def build(config: Config, method: Method, seed: int, job: Job) -> Loop:
    """Return the training of a method on a seed's own draw of the rows."""
    torch.manual_seed(seed)
    model = network(method, (COLUMNS, config.width, CLASSES)).to(job.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr, weight_decay=method.weight_decay)
    if method.kind == "thin":
        mrreg.attach(optimizer, model, seed=seed)
    torch.manual_seed(seed)  # dropout draws from the global generator
    sizes = (config.rows, config.validation, config.batch)
    return drawn(table(config.test), sizes, model, optimizer, seed, job)


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


SHOWN = Shown(
    "Wide MLP on few rows of a table (cut of diamonds)",
    {name: name for name in METHODS},
    [*((THIN, other) for other in METHODS if other != THIN), (f"{THIN}, boost 1", DROPOUT), (DROPOUT, NONE)],
    words="more accurate than",
    note="22-1000-1000-5, 1,000 rows drawn for each seed (`gpu`: 4096 wide, 5,000 rows), AdamW, cosine schedule. Three "
    "shares of columns and hidden units, and three weight decays, are tried on 5,000 other rows at equal seconds. "
    "Accuracy at the end of each training.",
)
STUDY = Study("thin-tabular", PRESETS, comparisons, build, data="diamonds (ggplot2)")
BENCHMARK = STUDY.benchmark(study_sections(SHOWN, baseline=NONE))
