"""Masks, dropout and plain SGD on MNIST (the paper's figure 8 and table A5).

Differs from the paper: it leaves width, batch size, epochs and momentum open, and its "de-activated with a probability
of 0.8 and 0.5" may mean the probability of being kept. Which reading comes nearest is the subject of `mnist-search`;
here the tables are under the one that does, with the literal one beside it at k = 5.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

from benchmarks.core.records import Result
from benchmarks.core.runner import Benchmark, Context, Run
from benchmarks.core.sections import Bars, Claim, Curves, Paper, Row, Section, gain, metric
from benchmarks.data import mnist as mnist_data
from benchmarks.experiments.mnist.models import Method
from benchmarks.experiments.mnist.search import TABLE
from benchmarks.experiments.mnist.training import Setting, train

KEPT, AT_ZERO = (
    (0.2, 0.5),
    (0.8, 0.5),
)  # the two readings of the paper's probabilities, as probabilities of being at zero

MASKS, EVERY_STEP = "masks, k = 5", "new mask every step, no multirate"
LITERAL = (f"{MASKS}, 0.8/0.5 at zero", f"{EVERY_STEP}, 0.8/0.5 at zero")
METHODS = {
    "SGD": Method(),
    "dropout": Method("dropout", KEPT),
    MASKS: Method("masks", KEPT, 5),
    EVERY_STEP: Method("every step", KEPT),
    "DropConnect": Method("DropConnect", KEPT),
    "masks, k = 3": Method("masks", KEPT, 3),
    "masks, k = 10": Method("masks", KEPT, 10),
    "masks, h_S = 0.2": Method("masks", KEPT, 5, boost=2),
    "masks, h_S = 0.8": Method("masks", KEPT, 5, boost=8),
    "masks, h_S = 1": Method("masks", KEPT, 5, boost=10),
    LITERAL[0]: Method("masks", AT_ZERO, 5),
    LITERAL[1]: Method("every step", AT_ZERO),
}
FIGURE = ("SGD", "dropout", MASKS, EVERY_STEP, "DropConnect")

H_S = {
    "masks, h_S = 0.2": Paper(98.26, 98.14, 98.37),
    MASKS: TABLE[5],
    "masks, h_S = 0.8": Paper(98.31, 98.21, 98.44),
    "masks, h_S = 1": Paper(98.29, 98.19, 98.44),
}
"""The paper's test accuracy by the slow step size; 0.5 is k = 5 with the coupled step size."""


@dataclass(frozen=True)
class MnistConfig:
    """The length of every training, and its data."""

    seeds: int
    epochs: int
    methods: tuple[str, ...] = tuple(METHODS)
    data: Literal["mnist", "digits"] = "mnist"
    batch: int = 128
    width: int = 800
    momentum: float = 0.9
    stacked: bool = False


PRESETS = {
    "smoke": MnistConfig(seeds=2, epochs=3, data="digits", width=32, batch=50, stacked=True),
    "cpu": MnistConfig(seeds=3, epochs=12, methods=tuple(METHODS)[:10]),
    "gpu": MnistConfig(seeds=10, epochs=40, stacked=True),
    "paper": MnistConfig(seeds=10, epochs=100),
}  # fmt: skip
MNIST = frozenset({"cpu", "gpu", "paper"})


def runs(config: MnistConfig) -> list[Run]:
    """Every method, one seed after the other or all at once."""
    everyone = tuple(range(config.seeds))
    groups = [everyone] if config.stacked else [(seed,) for seed in everyone]
    return [Run(method, group) for group in groups for method in config.methods]


def execute(config: MnistConfig, run: Run, context: Context) -> list[Result]:
    """Train with one method."""
    digits = mnist_data.load(config.data, context.data_dir).to(context.device)
    setting = Setting(config.epochs, config.batch, config.width, momentum=config.momentum, stacked=config.stacked)
    return [
        {
            "accuracy": curve.accuracy[-1],
            "best accuracy": max(curve.accuracy),
            "training seconds": curve.seconds[-1] / len(run.seeds),
            "accuracy per epoch": curve.accuracy,
        }
        for curve in train(METHODS[run.method], setting, digits, run.seeds, track=partial(context.track, what="epochs"))
    ]


def _rows(papers: Mapping[str, Paper | None]) -> tuple[Row, ...]:
    return tuple(Row(name, metric(name, "accuracy"), paper) for name, paper in papers.items())


OPEN = (
    "Width 800, batch 128 and the number of epochs are ours, since the paper does not give them; momentum is its 0.9 "
    '"unless indicated otherwise" (mnist-search compares readings). Its 0.8 and 0.5 are read as '
    "probabilities of being kept, unless a row says otherwise. Accuracy is that of the last epoch, with all weights."
)

SECTIONS = (
    Section(
        "Figure 8", "Masks, dropout and SGD on MNIST, single hidden layer", "%",
        rows=_rows({name: TABLE[5] if name == MASKS else None for name in FIGURE}),
        claims=(
            Claim("Masks are more accurate than SGD.", gain(MASKS, "SGD", "accuracy")),
            Claim("Masks are more accurate than the same without the multirate part.",
                  gain(MASKS, EVERY_STEP, "accuracy")),
            Claim("Masks are more accurate than dropout.", gain(MASKS, "dropout", "accuracy")),
        ),
        plots=(
            Curves({name: name for name in FIGURE}, "accuracy per epoch", "epoch", "test accuracy in %",
                   references={"k = 5": TABLE[5].mean}, ylim=(96, 98.8)),
            Bars("test accuracy in %"),
        ),
        tolerance=0.1, smaller="fewer epochs and seeds", comparable=MNIST, note=OPEN, presets=MNIST,
    ),
    Section(
        "Figure 8", "Masks on MNIST with 0.8 and 0.5 as probabilities of being at zero", "%",
        rows=_rows({LITERAL[0]: TABLE[5], LITERAL[1]: None}),
        claims=(
            Claim("Masks are more accurate than SGD.", gain(LITERAL[0], "SGD", "accuracy")),
            Claim("Masks are more accurate than the same without the multirate part.", gain(*LITERAL, "accuracy")),
        ),
        tolerance=0.1, smaller="fewer epochs and seeds", comparable=MNIST, note=OPEN, presets=MNIST - {"cpu"},
    ),
    Section(
        "Table A5", "Masks on MNIST: effect of k, with h_S = k h_F", "%",
        rows=_rows({f"masks, k = {k}": paper for k, paper in TABLE.items()}),
        claims=(
            Claim("k = 3 is more than five points worse than k = 5.", gain(MASKS, "masks, k = 3", "accuracy"), 5.0),
            Claim("k = 5 is more accurate than k = 10.", gain(MASKS, "masks, k = 10", "accuracy")),
        ),
        plots=(
            Curves({f"masks, k = {k}": f"masks, k = {k}" for k in TABLE}, "accuracy per epoch", "epoch",
                   "test accuracy in %", references={f"k = {k}": TABLE[k].mean for k in (5, 10)},
                   ylim=(96, 98.8)),
        ),
        tolerance=0.1, smaller="fewer epochs and seeds", comparable=MNIST, note=OPEN, presets=MNIST,
    ),
    Section(
        "Table A5", "Masks on MNIST: effect of the slow step size h_S at k = 5", "%",
        rows=_rows(H_S), plots=(Bars("test accuracy in %", ylim=(97, 99)),),
        tolerance=0.1, smaller="fewer epochs and seeds", comparable=MNIST, note=OPEN, presets=MNIST,
    ),
)  # fmt: skip

BENCHMARK = Benchmark("mnist", PRESETS, runs, execute, SECTIONS, lambda config: mnist_data.NAMES[config.data])
