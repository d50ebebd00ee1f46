"""Which methods compete on few MNIST images, under which names, and how their p is chosen."""

from statistics import fmean
from typing import get_args

from benchmarks.core.records import Record
from benchmarks.experiments.mnist.models import Method, Structure

PAIRS = ((0.2, 0.5), (0.5, 0.5), (0.7, 0.5))
SINGLES = tuple((0.0, p) for p in (0.3, 0.5, 0.7))  # where only hidden units are left out


def masks(structure: Structure, k: int, *, rescale: bool) -> str:
    """The name of a kind of masks."""
    return f"masks by {structure}, k = {k}{', rescaled' if rescale else ''}"


RESCALED: tuple[Structure, ...] = ("weight", "input", "hidden")
KINDS: list[tuple[Structure, int, bool]] = [
    *((structure, k, True) for structure in RESCALED for k in (2, 5, 10)),
    ("output", 5, True),
    ("weight", 5, False),
    ("input", 5, False),
]
METHODS = {"SGD": Method(), "dropout": Method("dropout"), "DropConnect": Method("DropConnect")} | {
    masks(structure, k, rescale=rescale): Method("masks", k=k, structure=structure, rescale=rescale)
    for structure, k, rescale in KINDS
}
FEW = ("SGD", "dropout", "DropConnect", *(masks(s, 5, rescale=True) for s in get_args(Structure)))


def trials(method: Method, count: int) -> tuple[tuple[float, float], ...]:
    """The chances that are tried for a method: one for SGD, which has none, `count` for each of the others."""
    if method.kind == "SGD":
        return ((0.0, 0.0),)
    return (SINGLES if method.structure in ("hidden", "output") else PAIRS)[:count]


def chosen(record: Record, images: int, name: str) -> tuple[float, float]:
    """The p of a method that did best on the validation split; the earlier one where two are equal."""
    tried = trials(METHODS[name], record.config["trials"])
    return max(tried, key=lambda p: validation(record, images, name, p))


def validation(record: Record, images: int, name: str, p: tuple[float, float]) -> float:
    """Mean validation accuracy of a trial; 0 where it has not run."""
    found = record.numbers(trial_key(images, name, p), "validation accuracy").values()
    return fmean(found) if found else 0.0


def trial_key(images: int, name: str, p: tuple[float, float]) -> str:
    """A trial's method in the record."""
    return f"tuning {images}: {name}, p = {p[0]:g}/{p[1]:g}"


def comparison_key(images: int, name: str) -> str:
    """A method of the comparison in the record."""
    return f"{images}: {name}"


def cost_key(images: int) -> str:
    """The timing in the record."""
    return f"cost {images}"
