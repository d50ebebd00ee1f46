"""Which methods compete on Penn Treebank, under which names, and how their p is chosen."""

from collections.abc import Sequence
from statistics import fmean

from benchmarks.core.records import Record
from benchmarks.experiments.ptb.training import LR, Method

MINIMUM = "minimum validation loss"

SEARCHED = {"dropout": Method("dropout"), "masks": Method("masks"), "unit masks": Method("unit masks")}
COMPARED = {"SGD": Method(), **SEARCHED}
FIGURE = ("SGD", "dropout", "masks")
K = {"masks, k = 3": Method("masks", k=3), "masks, k = 10": Method("masks", k=10)}
H_S = {f"masks, h_S = {h:g}": Method("masks", boost=round(h / LR, 6)) for h in (0.2, 0.3, 0.8)}  # 0.5 is k = 5
TABLES = K | H_S
WITHOUT_MOMENTUM = {f"{name}, momentum 0": Method(COMPARED[name].kind, momentum=0.0) for name in FIGURE}
METHODS = COMPARED | TABLES | WITHOUT_MOMENTUM


def searched(name: str) -> str:
    """The method whose search gives a method its p; empty for SGD, which has none."""
    return "" if METHODS[name].kind == "SGD" else METHODS[name].kind


def trial(name: str, p: float) -> str:
    """A trial of the search in the record."""
    return f"search: {name}, p = {p:g}"


def found(record: Record, name: str, tried: Sequence[float]) -> dict[float, float]:
    """Mean minimum of the validation loss by p, of the trials that have run."""
    losses = {p: list(record.numbers(trial(name, p), MINIMUM).values()) for p in tried}
    return {p: fmean(each) for p, each in losses.items() if each}


def chosen(record: Record, name: str, tried: Sequence[float]) -> float:
    """The p with the lowest validation loss in the search; the first one where two are equal or none has run."""
    losses = found(record, name, tried)
    return min(tried, key=lambda p: losses.get(p, float("inf")))
