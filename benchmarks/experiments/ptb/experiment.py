"""Masks, dropout and SGD for a small transformer on Penn Treebank (the paper's figure 9 and table A6).

Differs from the paper: it gives neither the momentum here (0.9 is its default; 0 is tried too) nor the p of masks and
dropout, which are searched on the validation text with one seed that the comparison does not use, nor the number of
epochs. `cpu` trains on a tenth of the text, with fewer words and smaller batches, until SGD has passed its minimum.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial

from benchmarks.core.records import Result
from benchmarks.core.runner import Benchmark, Context, Run
from benchmarks.experiments.ptb.data import penn_treebank
from benchmarks.experiments.ptb.methods import (
    FIGURE,
    METHODS,
    MINIMUM,
    SEARCHED,
    TABLES,
    WITHOUT_MOMENTUM,
    chosen,
    searched,
    trial,
)
from benchmarks.experiments.ptb.report import SECTIONS
from benchmarks.experiments.ptb.training import Method, Setting, train

SEARCH_SEED = 1000  # so that the search shares none with the comparison


@dataclass(frozen=True)
class PtbConfig:
    """How much text, how long, and which p are tried; None is all of the text or words.

    Args:
        seeds: Of the comparison; the search has one of its own.
        epochs: At most so many.
        p: What is tried for each of dropout, masks and unit masks.
        patience: As in `Setting`.
        batch: Rows of a batch.
        tokens: Of the training text.
        words: How many different ones; the others are `<unk>`.
        held_out: Tokens of the validation and of the test text.
        width: Of the model.
        without_momentum: Whether the figure is made with momentum 0 too; else SGD alone is, with one seed.
        bfloat16: Whether matrices are multiplied in bfloat16.
    """

    seeds: int
    epochs: int
    p: tuple[float, ...]
    patience: int | None = None
    batch: int = 128
    tokens: int | None = None
    words: int | None = None
    held_out: int | None = None
    width: int = 200
    without_momentum: bool = False
    bfloat16: bool = False


PRESETS = {
    "smoke": PtbConfig(2, 2, (0.1,), 1, batch=8, tokens=2_000, words=100, held_out=1_800, width=8),
    "cpu": PtbConfig(3, 12, (0.03, 0.1, 0.3), 2, batch=20, tokens=93_000, words=1_000, held_out=25_000),
    "gpu": PtbConfig(3, 12, (0.1, 0.3), bfloat16=True),  # 2,484 steps a run, whose cost is that of launching kernels
    "paper": PtbConfig(10, 100, (0.03, 0.1, 0.2, 0.3, 0.5), 10, without_momentum=True),
}


def runs(config: PtbConfig) -> list[Run]:
    """Search and comparison of dropout and masks, SGD with momentum 0, tables, unit masks, all with momentum 0."""

    def trials(*names: str) -> list[Run]:
        return [
            Run(trial(name, p), (SEARCH_SEED,), replace(SEARCHED[name], p=p)) for name in names for p in config.p
        ]  # fmt: skip

    def each_seed(names: Iterable[str]) -> list[Run]:
        return [Run(name, (seed,)) for seed in range(config.seeds) for name in names]

    return [
        *trials("dropout", "masks"),
        *each_seed(FIGURE),
        *([] if config.without_momentum else [Run("SGD, momentum 0")]),
        *each_seed(TABLES),
        *trials("unit masks"),
        *each_seed(["unit masks"]),
        *each_seed(WITHOUT_MOMENTUM if config.without_momentum else ()),
    ]


def execute(config: PtbConfig, run: Run, context: Context) -> list[Result]:
    """Train once; a method of the comparison gets the p that the search has chosen."""
    method: Method = run.options or with_chosen_p(run.method, config, context)
    text = penn_treebank(context.data_dir, config.tokens, config.words, config.held_out).to(context.device)
    setting = Setting(config.epochs, config.batch, config.patience, config.width, config.bfloat16)
    (seed,) = run.seeds
    curve = train(method, setting, text, seed, partial(context.track, what="epochs"))
    best = min(range(len(curve.valid)), key=curve.valid.__getitem__)
    return [
        {
            MINIMUM: curve.valid[best],
            "epoch of the minimum": best + 1,
            "test loss at the minimum": curve.test[best],
            "p": method.p,
            "training seconds": curve.seconds,
            "validation loss per epoch": curve.valid,
            "training loss per epoch": curve.train,
        }
    ]


def with_chosen_p(name: str, config: PtbConfig, context: Context) -> Method:
    """A method with the p of its search; masks of the tables have that of the masks with k = 5."""
    source = searched(name)
    return replace(METHODS[name], p=chosen(context.record, source, config.p)) if source else METHODS[name]


BENCHMARK = Benchmark("ptb", PRESETS, runs, execute, SECTIONS)
