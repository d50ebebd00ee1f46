"""Masks, dropout and SGD for a small transformer on Penn Treebank (the paper's figure 9 and table A6).

Differs from the paper: it gives neither the momentum here (0.9 is its default; 0 is tried too) nor the p of masks and
dropout, which are searched on the validation text with one seed that the comparison does not use, nor the number of
epochs. `cpu` trains on a tenth of the text, with fewer words and smaller batches, until SGD has passed its minimum.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

import mrreg
from benchmarks.core.comparison import Comparison, Job, Outcome
from benchmarks.core.records import Result
from benchmarks.core.study import Study
from benchmarks.core.training import Batch, Batches, Loop, mean_loss
from benchmarks.experiments.ptb.data import TOKENS, penn_treebank
from benchmarks.experiments.ptb.methods import (
    FIGURE,
    LENGTH,
    LR,
    METHODS,
    MINIMUM,
    TABLES,
    WITHOUT_MOMENTUM,
    Method,
    network,
    search,
)
from benchmarks.experiments.ptb.report import SECTIONS

HELD_OUT_ROWS = 50  # of a batch of held-out text; every 35 words are read on their own, so this changes speed only


@dataclass(frozen=True)
class PtbConfig:
    """The text, the length of trainings, and the p that are tried; None is all of the text or words."""

    seeds: int  # of the comparison; the search has one of its own
    epochs: int  # at most so many
    p: tuple[float, ...]  # what is tried for each of dropout, masks and unit masks
    # training ends after so many epochs without a new minimum of the validation loss; None never does
    patience: int | None = None
    batch: int = 128  # rows of a batch of 35 words each
    tokens: int | None = None  # of the training text
    words: int | None = None  # how many different ones; the others are `<unk>`
    held_out: int | None = None  # tokens of the validation and of the test text
    width: int = 200  # of the model
    without_momentum: bool = False  # make the figure with momentum 0 too; else SGD alone, with one seed
    bfloat16: bool = False  # multiply matrices in bfloat16


PRESETS = {
    "smoke": PtbConfig(2, 2, (0.1,), 1, batch=8, tokens=2_000, words=100, held_out=1_800, width=8),
    "cpu": PtbConfig(3, 12, (0.03, 0.1, 0.3), 2, batch=20, tokens=93_000, words=1_000, held_out=25_000),
    "gpu": PtbConfig(3, 12, (0.1, 0.3), bfloat16=True),  # 2,484 steps a run, whose cost is that of launching kernels
    "paper": PtbConfig(10, 100, (0.03, 0.1, 0.2, 0.3, 0.5), 10, without_momentum=True),
}


def comparisons(config: PtbConfig) -> list[Comparison[Method]]:
    """Return search and figure, SGD with momentum 0, tables, unit masks, all with momentum 0."""
    length = (config.tokens or TOKENS["train"]) // config.batch  # of a row
    epoch = -(-(length - 1) // LENGTH)
    budgets = tuple(epoch * done for done in range(1, config.epochs + 1))

    def compared(names: Iterable[str], *searched: str, seeds: int = config.seeds) -> Comparison[Method]:
        return Comparison(
            {name: METHODS[name] for name in names}, seeds, budgets, search=search(config.p, *searched),
            splits=("validation", "test", "train"), patience=config.patience,
        )  # fmt: skip

    return [
        compared(FIGURE, "dropout", "masks"),
        *([] if config.without_momentum else [compared(["SGD, momentum 0"], seeds=1)]),
        compared(TABLES, "masks"),
        compared(["unit masks"], "unit masks"),
        *([compared(WITHOUT_MOMENTUM, "dropout", "masks")] if config.without_momentum else []),
    ]


def build(config: PtbConfig, method: Method, seed: int, job: Job) -> Loop:
    """Return a training whose weights, dropout and masks follow from the seed; the text always has the same order."""
    text = penn_treebank(job.data_dir, config.tokens, config.words, config.held_out).to(job.device)
    torch.manual_seed(seed)
    model = network(method, text.words, config.width).to(job.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=method.momentum)
    if method.kind.endswith("masks"):
        mrreg.attach(optimizer, model, seed=seed)
    torch.manual_seed(seed)  # dropout draws from the global generator
    train = batches(in_rows(text.train, config.batch))
    valid, test = (batches(in_rows(part, HELD_OUT_ROWS)) for part in (text.valid, text.test))
    return Loop(
        model,
        optimizer,
        Batches(lambda generator: range(len(train)), train.__getitem__, torch.Generator()),
        {"validation": lambda: valid, "test": lambda: test},
        metric=mean_loss,
        forward=partial(torch.autocast, job.device.type, torch.bfloat16, enabled=config.bfloat16),
    )


def in_rows(text: Tensor, rows: int) -> Tensor:
    """Return the text cut into rows of equal length that are read side by side; what is left over is dropped."""
    return text[: len(text) // rows * rows].view(rows, -1)


def batches(rows: Tensor) -> list[Batch]:
    """Return at most 35 words of each row, and the word that follows each, in the order of the text."""
    return list(zip(rows[:, :-1].split(LENGTH, 1), rows[:, 1:].split(LENGTH, 1), strict=True))  # type: ignore[no-untyped-call]


def result(config: PtbConfig, outcome: Outcome[Method]) -> Result:
    """Return the losses after each epoch, and when that of the validation text was smallest."""
    valid, test, train = (outcome.at_steps(split) for split in ("validation", "test", "train"))
    best = min(range(len(valid)), key=valid.__getitem__)
    return {
        MINIMUM: valid[best],
        "epoch of the minimum": best + 1,
        "test loss at the minimum": test[best],
        "p": outcome.method.p,
        "training seconds": outcome.by_steps.seconds,
        "validation loss per epoch": valid,
        "training loss per epoch": train,
    }


STUDY = Study("ptb", PRESETS, comparisons, build, "loss", lower=True, result=result, data="Penn Treebank")
BENCHMARK = STUDY.benchmark(SECTIONS)
