"""Masks, dropout and plain SGD on MNIST (the paper's figure 8 and table A5).

Differs from the paper: it leaves width, batch size, epochs and momentum open, and its "de-activated with a probability
of 0.8 and 0.5" may mean the probability of being kept. Which reading comes nearest, the closed record `mnist-search`
says; here the tables are under the one that does, with the literal one beside it at k = 5.
"""

from dataclasses import dataclass
from functools import partial
from typing import Literal

from benchmarks.core.comparison import Comparison, Job, each_epoch
from benchmarks.core.sections import Bars, Claim, Curves, Paper, Section, gain, rows
from benchmarks.core.study import Study
from benchmarks.core.training import Loop
from benchmarks.data import mnist as mnist_data
from benchmarks.experiments.mnist.training import Method, begin

TABLE = {3: Paper(76.16, 61.31, 89.41), 5: Paper(98.30, 98.17, 98.44), 10: Paper(98.22, 98.11, 98.29)}
"""The paper's test accuracy by k: mean, smallest and largest of 10 runs."""

KEPT, AT_ZERO = (0.2, 0.5), (0.8, 0.5)  # the two readings of the paper's probabilities, as those of being at zero
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

BY_K = {f"masks, k = {k}": paper for k, paper in TABLE.items()}
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


PRESETS = {
    "smoke": MnistConfig(seeds=2, epochs=3, data="digits", width=32, batch=50),
    "cpu": MnistConfig(seeds=3, epochs=12, methods=tuple(METHODS)[:10]),
    "gpu": MnistConfig(seeds=10, epochs=40),
    "paper": MnistConfig(seeds=10, epochs=100),
}  # fmt: skip
MNIST = frozenset({"cpu", "gpu", "paper"})


def comparisons(config: MnistConfig) -> list[Comparison[Method]]:
    steps = -(-mnist_data.IMAGES[config.data] // config.batch)
    methods = {name: METHODS[name] for name in config.methods}
    return [Comparison(methods, config.seeds, each_epoch(steps, config.epochs))]


def build(config: MnistConfig, method: Method, seed: int, job: Job) -> Loop:
    digits = mnist_data.load(config.data, job.data_dir).to(job.device)
    return begin(method, digits, seed, config.batch, config.width, config.momentum)


OPEN = (
    "Width 800, batch 128 and the number of epochs are ours, since the paper does not give them; momentum is its 0.9 "
    '"unless indicated otherwise" (mnist-search compares readings). Its 0.8 and 0.5 are read as '
    "probabilities of being kept, unless a row says otherwise. Accuracy is that of the last epoch, with all weights."
)

_rows = partial(rows, name="accuracy")
_section = partial(
    Section, unit="%", tolerance=0.1, smaller="fewer epochs and seeds", comparable=MNIST, note=OPEN, presets=MNIST
)
SECTIONS = (
    _section(
        "Figure 8", "Masks, dropout and SGD on MNIST, single hidden layer",
        rows=_rows(FIGURE, papers={MASKS: TABLE[5]}),
        claims=(
            Claim("Masks are more accurate than SGD.", gain(MASKS, "SGD", "accuracy")),
            Claim("Masks are more accurate than the same without the multirate part.",
                  gain(MASKS, EVERY_STEP, "accuracy")),
            Claim("Masks are more accurate than dropout.", gain(MASKS, "dropout", "accuracy")),
        ),
        plots=(
            Curves({name: name for name in FIGURE}, "accuracy by step", "epoch", "test accuracy in %",
                   references={"k = 5": TABLE[5].mean}, ylim=(96, 98.8)),
            Bars("test accuracy in %"),
        ),
    ),
    _section(
        "Figure 8", "Masks on MNIST with 0.8 and 0.5 as probabilities of being at zero",
        rows=_rows(LITERAL, papers={LITERAL[0]: TABLE[5]}),
        claims=(
            Claim("Masks are more accurate than SGD.", gain(LITERAL[0], "SGD", "accuracy")),
            Claim("Masks are more accurate than the same without the multirate part.", gain(*LITERAL, "accuracy")),
        ),
        presets=MNIST - {"cpu"},
    ),
    _section(
        "Table A5", "Masks on MNIST: effect of k, with h_S = k h_F",
        rows=_rows(BY_K, papers=BY_K),
        claims=(
            Claim("k = 3 is more than five points worse than k = 5.", gain(MASKS, "masks, k = 3", "accuracy"), 5.0),
            Claim("k = 5 is more accurate than k = 10.", gain(MASKS, "masks, k = 10", "accuracy")),
        ),
        plots=(
            Curves({name: name for name in BY_K}, "accuracy by step", "epoch", "test accuracy in %",
                   references={f"k = {k}": TABLE[k].mean for k in (5, 10)}, ylim=(96, 98.8)),
        ),
    ),
    _section(
        "Table A5", "Masks on MNIST: effect of the slow step size h_S at k = 5",
        rows=_rows(H_S, papers=H_S), plots=(Bars("test accuracy in %", ylim=(97, 99)),),
    ),
)  # fmt: skip

STUDY = Study("mnist", PRESETS, comparisons, build, data=lambda config: mnist_data.NAMES[config.data])
BENCHMARK = STUDY.benchmark(SECTIONS)
