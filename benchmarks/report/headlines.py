"""The comparisons that a reader wants first: rows of the README and of the guide, cards, and one figure.

A study says which pairs of its methods stand there (`Shown.against`); a row whose record is not there is left out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from benchmarks.core import stats
from benchmarks.core.records import Record
from benchmarks.core.sections import Curves, Shown
from benchmarks.report import plots

NONE, MINUS = "\N{EN DASH}", "\N{MINUS SIGN}"
WORDS = {"above": "ahead", "below": "behind", "within noise": "level"}
Shows = Sequence[tuple[Record, Sequence[Shown]]]
"""The largest record of each benchmark, with the comparisons of its study."""


@dataclass(frozen=True)
class Pair:
    """Two methods of one record, compared at equal seconds and at equal epochs."""

    record: Record
    shown: Shown
    ours: str  # the label of the method of this library
    rival: str  # that of what it is compared with

    def differences(self, number: str) -> list[float]:
        """Return by how much ours is better, one number a seed."""
        pair = [self.shown.methods[each] for each in (self.ours, self.rival)]
        pair = pair[::-1] if self.shown.lower else pair
        return stats.paired(*(self.record.numbers(method, number) for method in pair))

    def said(self, number: str) -> str:
        """Return the difference in words: "ahead: +1.4 points (+0.7 to +2.1)"."""
        found = self.differences(number)
        summary = stats.summarize(found)
        if summary.n < 2:
            return NONE
        digits, unit = (3, "nats") if self.shown.lower else (1, "points")
        low, high = (f"{bound:+.{digits}f}" for bound in summary.interval)
        mean = f"{summary.mean:+.{digits}f} {unit}"
        return f"{WORDS[stats.judge(found)]}: {mean} ({low} to {high})".replace("-", MINUS)

    @property
    def at_seconds(self) -> str:
        return f"{self.shown.metric} at equal seconds"

    @property
    def seconds(self) -> str:
        return self.said(self.at_seconds)

    @property
    def epochs(self) -> str:
        return self.said(self.shown.metric)

    def cost(self) -> tuple[str, str]:
        """Return the cost of a step of both, plain training's being 1."""
        return tuple(
            f"{median(found):.2f}" if found else NONE
            for each in (self.ours, self.rival)
            for found in [self.record.numbers(self.shown.methods[each], "relative cost").values()]
        )  # type: ignore[return-value]


OURS, TUNED = "thin, defaults", "thin, tuned"
RIVALS = "none", "dropout", "weight decay"
VARIANTS = (
    "thin, a quarter of the units", "thin, new units at every step", "thin, tuned, whole for the last tenth",
    "dropout, one draw for the batch", "dropout, off for the last tenth",
)  # fmt: skip


def tasks(shows: Shows) -> list[tuple[Record, Shown]]:
    """Return the tasks of thin training whose records have it and all rivals."""
    return [
        (record, shown)
        for record, each in shows
        for shown in each
        if all(shown.methods.get(name) and record.results(shown.methods[name]) for name in (OURS, TUNED, *RIVALS))
    ]


def against_best(shows: Shows) -> list[tuple[Pair, Pair, Pair]]:
    """Return thin training at its defaults and tuned against the best rival at equal epochs, and at equal seconds."""
    found = []
    for record, shown in tasks(shows):
        pairs = [Pair(record, shown, TUNED, rival) for rival in RIVALS]
        best = _closest(pairs, shown.metric)
        found.append((replace(best, ours=OURS), best, _closest(pairs, best.at_seconds)))
    return found


def _closest(pairs: Sequence[Pair], number: str) -> Pair:
    return min(pairs, key=lambda pair: stats.summarize(pair.differences(number)).mean)


def matrix(shows: Shows, variants: bool) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """Return methods, and for each task their means at equal epochs with the cost of a step in brackets.

    Methods are all but the variants, or tuned thin training and dropout with their variants, where there are any.
    """
    found = [each for each in tasks(shows) if not variants or not {*VARIANTS}.isdisjoint(each[1].methods)]
    names = dict.fromkeys(name for _, shown in found for name in shown.methods)
    methods = [name for name in names if (name in (*VARIANTS, TUNED, "dropout") if variants else name not in VARIANTS)]

    def cell(record: Record, shown: Shown, name: str) -> str:
        number = stats.summarize(record.numbers(shown.methods.get(name, ""), shown.metric).values())
        cost = Pair(record, shown, name, name).cost()[0] if number.n else NONE
        return f"{number.mean:.{3 if shown.lower else 1}f} ({cost})" if number.n else NONE

    return methods, [(s.task, [cell(record, s, name) for name in methods]) for record, s in found]


def forest(shows: Shows) -> bytes:
    """Return the figure of the guide: a line for each task, tuned thin training minus its best rival."""
    best = [row[1:] for row in against_best(shows)]
    panels = [rows for lower in (False, True) if (rows := [row for row in best if row[0].shown.lower == lower])]
    with mpl.rc_context({**plots.STYLE, "svg.fonttype": "none"}):
        figure = Figure(figsize=(7.0, 1.4 + 0.5 * len(best)), layout="constrained")
        parts = figure.subplots(max(len(panels), 1), squeeze=False, height_ratios=[*map(len, panels)] or None)
        for axes, rows in zip(parts.flat, panels, strict=False):
            for place, (epochs, seconds) in enumerate(rows):
                number = epochs.shown.metric
                for shift, pair, name, mark in ((-0.12, epochs, number, "o"), (0.12, seconds, epochs.at_seconds, "s")):
                    found = stats.summarize(pair.differences(name))
                    label = f"equal {'epochs' if mark == 'o' else 'seconds'}" if epochs is best[0][0] else None
                    style: dict[str, Any] = {"fmt": mark, "color": "C0" if mark == "o" else "C1", "label": label}
                    axes.errorbar(found.mean, place + shift, xerr=found.half, capsize=2, **style)
            names = [f"{one.shown.task}\nagainst {', '.join({one.rival: 0, two.rival: 0})}" for one, two in rows]
            axes.set_yticks(range(len(rows)), names, fontsize=7)
            axes.axvline(0, color="black", linewidth=0.8)
            axes.set_ylim(len(rows) - 0.5, -0.5)
            axes.set_xlabel("nats fewer" if rows[0][0].shown.lower else "points more", fontsize=8)
        if best:
            figure.legend(fontsize=7, loc="outside upper right", ncols=2)
        return plots.svg(figure)


def pairs(shows: Shows, names: Sequence[str], most: int | None = None) -> list[Pair]:
    """Return the pairs of some benchmarks that have any number, at most so many of each comparison."""
    found = [
        Pair(record, shown, *pair)
        for name in names
        for record, each in shows
        if record.benchmark == name
        for shown in each
        if shown.task
        for pair in shown.against[:most]
    ]
    return [pair for pair in found if {pair.seconds, pair.epochs} != {NONE}]


@dataclass(frozen=True)
class Card:
    """One way to use the library: what it is, what it gains and costs, when to use it, one plot."""

    title: str
    what: str
    use_if: str
    benchmarks: Sequence[str]
    curves: Curves  # of the first of them
    cost: str = "A step takes {} of a plain step's time, one with {} {} ({})."


TASKS = ("regularizers-digits", "regularizers-vit", "regularizers-cora", "regularizers-table")
FC, FULL, BLOCK = "multirate k = 5, fast: fc", "full fine-tuning", "last block + fc only"
CIFAR = "MobileNetV1 (width 0.25) on CIFAR-10: own lr: "
CARDS = (
    Card(
        "Thin training", "On k - 1 of k steps a random part of the network is absent for the whole batch and not "
        "computed; on the k-th all of it is there.",
        "You would use dropout, layers are large, and time matters.", TASKS,
        Curves({each: each for each in ("none", "dropout", OURS)}, "accuracy by time", "seconds of training",
               "test accuracy in %", "seconds"),
    ),
    Card(
        "Masks", "A random part of the weights or units rests for k - 1 of k steps; a resting unit is not computed.",
        "You want the paper's method, or single weights to rest; to save time take thin training.", ("ptb",),
        Curves({each: each for each in ("SGD", "dropout", "masks")}, "validation loss by step", "epoch",
               "validation loss in nats"),
    ),
    Card(
        "Fine-tuning", "The later layers move at every step, everything else once in k steps, by k times as much.",
        "You would fine-tune everything, seconds are short, and freezing the lower layers costs accuracy.",
        ("transfer", "text-seconds"),
        Curves({each: CIFAR + each for each in (FULL, FC, BLOCK)}, "accuracy by time", "seconds of training",
               "test accuracy in %", "seconds"),
    ),
    Card(
        "Several time scales", "Any group of parameters gets a period of its own and moves along a held direction "
        "between its updates.",
        "Parts of the network want different step sizes and plain SGD stalls; with momentum it may not pay.",
        ("spiral",),
        Curves({"SGD": "SGD", "multirate, all biases": "multirate, all biases"}, "accuracy by step",
               "step (20 an epoch)", "test accuracy in %", "step", ylim=(45, 95)),
    ),
)  # fmt: skip
EXCERPT = (*TASKS, "text-seconds")


def cards(shows: Shows, looks: Mapping[str, plots.Look], given: Sequence[Card] = CARDS) -> list[dict[str, Any]]:
    """Return the cards that have anything to say, with their numbers."""
    found = []
    for card in given:
        if gains := pairs(shows, card.benchmarks, 2):
            figure = Figure(figsize=(4.2, 3.2), layout="constrained")
            with mpl.rc_context(plots.STYLE):
                drawn = plots.draw_curves(card.curves, gains[0].record, figure.add_subplot(), looks)
                plot = plots.uri(figure) if drawn else ""
            found.append({**vars(card), "gains": gains, "cost": _cost(card, gains), "plot": plot})
    return found


def _cost(card: Card, gains: Sequence[Pair]) -> str:
    """Return what a step costs, in the first comparison that knows."""
    known = [(pair, *cost) for pair in gains if NONE not in (cost := pair.cost())]
    return card.cost.format(known[0][1], known[0][0].rival, known[0][2], known[0][0].shown.task) if known else ""


def picture(shows: Shows, looks: Mapping[str, plots.Look]) -> bytes:
    """Return the figure of the README, the plots of the cards side by side, as SVG with its text as text."""
    there = [(card, record) for card in CARDS for record, _ in shows if record.benchmark == card.benchmarks[0]]
    with mpl.rc_context({**plots.STYLE, "svg.fonttype": "none"}):
        figure = Figure(figsize=(3.9 * max(1, len(there)), 3.8), layout="constrained")
        parts = [(each, each.subplots()) for each in figure.subfigures(1, max(1, len(there)), squeeze=False)[0]]
        for (card, record), (part, axes) in zip(there, parts, strict=False):
            plots.draw_curves(card.curves, record, axes, looks)
            part.suptitle(card.title)
        return plots.svg(figure)
