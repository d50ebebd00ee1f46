"""The comparisons that a reader wants first, as data: rows of the README's excerpt, cards, and one figure.

A row or card whose record is not there is left out, so that a new comparison is one more entry in a table here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import matplotlib as mpl
from matplotlib.figure import Figure

from benchmarks.core import stats
from benchmarks.core.records import Record
from benchmarks.core.sections import Curves
from benchmarks.report import plots

Records = Mapping[str, Record]
"""The largest record of each benchmark."""
NONE, MINUS = "\N{EN DASH}", "\N{MINUS SIGN}"
WORDS = {"above": "ahead", "below": "behind", "within noise": "level"}


@dataclass(frozen=True)
class Comparison:
    """Two methods of one record, compared at equal seconds and at equal epochs.

    Args:
        task: What is trained on what.
        ours: The method of this library.
        rival: What it is compared with.
        record: The benchmark whose record has the numbers.
        methods: Ours and the rival as the record names them.
        seconds: The number at equal seconds in the results; empty where there is none.
        epochs: The number at equal epochs in the results.
        unit: Of the differences.
        digits: How many decimals of them are shown.
        lower: Less is better.
    """

    task: str
    ours: str
    rival: str
    record: str
    methods: tuple[str, str]
    seconds: str = "accuracy at equal seconds"
    epochs: str = "accuracy"
    unit: str = "points"
    digits: int = 1
    lower: bool = False

    def differences(self, records: Records, name: str) -> list[float]:
        """Return by how much ours is better, one number a seed."""
        pair = self.methods[::-1] if self.lower else self.methods
        return stats.paired(*(records[self.record].numbers(method, name) for method in pair))

    def said(self, records: Records, name: str) -> str:
        """Return the difference in words: "ahead: +1.4 points (+0.7 to +2.1)"."""
        found = self.differences(records, name)
        summary = stats.summarize(found)
        if summary.n < 2:
            return NONE
        low, high = (f"{bound:+.{self.digits}f}" for bound in summary.interval)
        mean = f"{summary.mean:+.{self.digits}f} {self.unit}"
        return f"{WORDS[stats.judge(found)]}: {mean} ({low} to {high})".replace("-", MINUS)


@dataclass(frozen=True)
class Cost:
    """What a step of a method costs: a sentence with one number for each method, the median over its runs."""

    text: str
    record: str
    methods: tuple[str, ...]
    name: str

    def said(self, records: Records) -> str:
        """Return the sentence; empty where a number is missing."""
        found = [records[self.record].numbers(each, self.name) for each in self.methods if self.record in records]
        return self.text.format(*(f"{median(each.values()):.2f}" for each in found)) if all(found) and found else ""


@dataclass(frozen=True)
class Card:
    """One way to use the library: what it is, what it gains and costs, when to use it, one plot."""

    title: str
    what: str
    comparisons: Sequence[Comparison]
    cost: Cost
    use_if: str
    record: str
    curves: Curves


UNITS, UNIT_MASKS = "masks by input, k = 5, rescaled", "masks by unit"
FC, FULL, BLOCK = "multirate k = 5, fast: fc", "full fine-tuning", "last block + fc only"
CIFAR, DIGITS = "MobileNetV1 (width 0.25) on CIFAR-10: own lr: ", "ResNet-20 on MNIST: own lr: "
HALF = "half fast, k = 5"

THIN = (
    Comparison("Penn Treebank, 30,000 characters, decoder", "thin training", "dropout", "thin-chars",
               ("thin, k = 5", "dropout"), "loss at equal seconds", "loss", "nats", 3, lower=True),
    Comparison("MNIST, 1,000 images, 784-1000-1000-10", "thin training", "dropout", "thin-mnist",
               ("1000: thin, k = 5", "1000: dropout")),
    Comparison("CIFAR-10, 1,000 images, vision transformer", "thin training", "dropout", "thin-vit",
               ("thin, k = 5", "dropout")),
    Comparison("CIFAR-10, 1,000 images, ResNet", "thin training", "Dropout2d", "thin-convolutions",
               ("ResNet: thin, k = 5", "ResNet: dropout")),
)  # fmt: skip
MASKS = (
    Comparison("MNIST, 5,000 images, 784-800-10", UNIT_MASKS, "dropout", "mnist-small",
               (f"5000: {UNITS}", "5000: dropout")),
    Comparison("Penn Treebank (a tenth), transformer", "masks by entry", "dropout", "ptb", ("masks", "dropout"),
               "", "test loss at the minimum", "nats", 3, lower=True),
)  # fmt: skip
FINE_TUNING = (
    Comparison("CIFAR-10, MobileNet pretrained on ImageNet", "last layer fast", "full fine-tuning", "transfer",
               (CIFAR + FC, CIFAR + FULL)),
    Comparison("MNIST, ResNet-20 pretrained on CIFAR-10", "last layer fast", "full fine-tuning", "transfer-digits",
               (DIGITS + FC, DIGITS + FULL)),
    Comparison("SST-2, MiniLM", "later half fast, slow lr / k", "full fine-tuning", "text-seconds",
               ("AdamW: half fast, k = 5, slow lr / k", "AdamW: full fine-tuning"), "equal seconds", "equal epochs"),
    Comparison("SST-2, MiniLM", "later half fast", "lower half frozen", "text-peers",
               (HALF, "lower half frozen"), epochs="accuracy at equal epochs"),
)  # fmt: skip
TIME_SCALES = (
    Comparison("4-turn spiral, slow biases", "multirate", "SGD", "spiral", ("multirate, all biases", "SGD"), ""),
    Comparison("the same with momentum 0.9", "multirate", "SGD", "spiral",
               ("multirate, momentum 0.9", "SGD, momentum 0.9"), ""),
)  # fmt: skip
EXCERPT = (*THIN, *FINE_TUNING[2:])
CARDS = (
    Card(
        "Thin training", "On k - 1 of k steps a random part of the network is absent for the whole batch and not "
        "computed; on the k-th all of it is there.",
        THIN,
        Cost("A step takes {} of a plain step's time, one with dropout {} (the decoder).", "thin-chars",
             ("thin, k = 5", "dropout"), "relative cost"),
        "You would use dropout, and time matters.", "thin-chars",
        Curves({each: each for each in ("none", "dropout", "thin, k = 5")}, "loss by time", "seconds of training",
               "test loss in nats", "seconds"),
    ),
    Card(
        "Masks", "A random part of the weights or units rests for k - 1 of k steps; a resting unit is not computed.",
        MASKS,
        Cost("A step with unit masks takes {} of a plain step's time, one with dropout {} (784-800-10).", "mnist-small",
             (f"5000: {UNITS}", "5000: dropout"), "relative cost"),
        "You would use dropout, layers are wide, and time matters more than epochs.", "mnist-small",
        Curves({each: f"5000: {each}" for each in ("SGD", "dropout", UNITS)}, "accuracy per evaluation",
               "training time in epochs of plain SGD", "test accuracy in %", "plain epochs per evaluation",
               ylim=(90, 96)),
    ),
    Card(
        "Fine-tuning", "The later layers move at every step, everything else once in k steps, by k times as much.",
        FINE_TUNING,
        Cost("A step with half of the encoder slow takes {} of a full step's time, one with that half frozen {}.",
             "text-peers", (HALF, "lower half frozen"), "relative cost"),
        "You would fine-tune everything, seconds are short, and freezing the lower layers costs accuracy.", "transfer",
        Curves({each: CIFAR + each for each in (FULL, FC, BLOCK)}, "accuracy by time", "seconds of training",
               "test accuracy in %", "seconds"),
    ),
    Card(
        "Several time scales", "Any group of parameters gets a period of its own and moves along a held direction "
        "between its updates.",
        TIME_SCALES,
        Cost("Five steps of the optimizer take {} times as long as torch.optim.SGD's (ten tensors of a million "
             "entries, no momentum).", "speed optimizer", ("10 tensors of 1,000,000 entries, momentum 0",), "ratio"),
        "Parts of the network want different step sizes and plain SGD stalls; with momentum it may not pay.", "spiral",
        Curves({"SGD": "SGD", "multirate, all biases": "multirate, all biases"}, "accuracy per evaluation", "epoch",
               "test accuracy in %", "epoch", ylim=(45, 95)),
    ),
)  # fmt: skip
LABELS = tuple(label for card in CARDS for label in card.curves.methods)


@dataclass(frozen=True)
class ShownCard:
    """A card with its numbers."""

    title: str
    what: str
    gains: Sequence[tuple[Comparison, str, str]]
    cost: str
    use_if: str
    plot: str


def excerpt(records: Records, rows: Sequence[Comparison] = EXCERPT) -> list[tuple[Comparison, str, str]]:
    """Return the comparisons whose record is there, with what was found at equal seconds and at equal epochs."""
    found = [
        (row, row.said(records, row.seconds), row.said(records, row.epochs)) for row in rows if row.record in records
    ]
    return [(row, seconds, epochs) for row, seconds, epochs in found if {seconds, epochs} != {NONE}]


def cards(records: Records, looks: Mapping[str, plots.Look], given: Sequence[Card] = CARDS) -> list[ShownCard]:
    """Return the cards that have anything to say."""
    shown = [(card, excerpt(records, card.comparisons)) for card in given]
    return [
        ShownCard(card.title, card.what, gains, card.cost.said(records), card.use_if, _plot(card, records, looks))
        for card, gains in shown
        if gains
    ]


def _plot(card: Card, records: Records, looks: Mapping[str, plots.Look]) -> str:
    with mpl.rc_context(plots.STYLE):
        figure = Figure(figsize=(4.2, 3.2), layout="constrained")
        drawn = card.record in records and plots.draw_curves(
            card.curves, records[card.record], figure.add_subplot(), looks
        )
        return plots.uri(figure) if drawn else ""


def picture(records: Records, looks: Mapping[str, plots.Look]) -> bytes:
    """Return the figure of the README: the plots of the cards side by side, as SVG."""
    there = [card for card in CARDS if card.record in records]
    with mpl.rc_context(plots.STYLE):
        figure = Figure(figsize=(3.9 * max(1, len(there)), 3.8), layout="constrained")
        parts = [(each, each.subplots()) for each in figure.subfigures(1, max(1, len(there)), squeeze=False)[0]]
        for card, (part, axes) in zip(there, parts, strict=False):
            plots.draw_curves(card.curves, records[card.record], axes, looks)
            part.suptitle(card.title)
        return plots.svg(figure)
