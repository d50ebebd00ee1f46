"""A cost model of thin training, checked against measured seconds and extrapolated to larger networks.

Seconds are FLOPs / rate + bytes that the optimizer reads and writes / bandwidth + bytes that are gathered, written back
and boosted / their bandwidth. The three are fitted to a record by least squares of relative errors. What elementwise
layers and Python take is in the rate.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from statistics import median
from typing import NamedTuple, Protocol

import numpy as np
from scipy.optimize import nnls
from torch import Tensor, nn

import mrreg
from benchmarks.core.records import Record
from benchmarks.core.sections import Row, Section, Values
from benchmarks.experiments.speed.common import Cycles

WAYS = ("thin", "resident")  # kept entries are gathered for each step, or once a cycle
LIMIT = 10  # per cent that a prediction may be off without being named
FLOAT = 4  # bytes of an entry
# how often an optimizer reads or writes an entry (torch's loops over single tensors), and tensors that it keeps
OPTIMIZERS = {"SGD": (3, 0), "SGD with momentum": (8, 1), "AdamW": (20, 2)}
COUNTED = 2  # examples whose FLOPs are counted


class Case(Cycles, Protocol):
    """A network, how it is trained, and how thin it becomes."""

    @property
    def network(self) -> str: ...
    @property
    def p(self) -> float: ...
    @property
    def k(self) -> int: ...


@dataclass(frozen=True)
class Counts:
    """FLOPs of a plain and a masked step; entries of all parameters, of those that lose some, and what these keep."""

    flops: float
    masked_flops: float
    entries: int
    thin: int
    kept: int


class Work(NamedTuple):
    """FLOPs, bytes of the optimizer's steps, bytes of gathering, writing back and boosting."""

    flops: float
    stepped: float
    moved: float


def count(model: nn.Module, p: float, inputs: Tensor) -> Counts:
    """Count what training a model, whole and thin, computes on a batch."""
    _, report = mrreg.thin(model, p=p, example_inputs=inputs[:COUNTED])
    masked, plain = (flops * len(inputs) / COUNTED for flops in report.flops)
    lost: defaultdict[str, Counter[int]] = defaultdict(Counter)
    for entry in report.values():
        for slot in entry.slots if entry.admitted else ():
            lost[slot.name][slot.dim] += (entry.units - entry.kept) * slot.indices.shape[1]
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    cut = {name: shape for name, shape in shapes.items() if name in lost}
    kept = sum(prod(size - lost[name][dim] for dim, size in enumerate(shape)) for name, shape in cut.items())
    return Counts(plain, masked, sum(map(prod, shapes.values())), sum(map(prod, cut.values())), kept)


def work(counts: Counts, case: Case, way: str) -> Work:
    """Return the work of k steps, plain ones or a thin cycle."""
    (passes, state), k = OPTIMIZERS[case.optimizer], case.k
    if way == "plain":
        return Work(k * counts.flops, FLOAT * k * passes * counts.entries, 0)
    kept, thin = counts.kept, counts.thin
    copies = 2 * 2 * kept * (1 + state)  # parameters and state, read and written, there and back
    gradients = 2 * kept + (thin + 2 * kept) + 2 * kept  # gathered by the forward, spread, gathered by the optimizer
    gathered = copies if way == "resident" else (k - 1) * (copies + gradients)
    joint = 5 * thin + 4 * kept  # remembered, moved further, kept entries put back
    stepped = passes * (counts.entries + (k - 1) * (counts.entries - thin + kept))
    return Work(counts.flops + (k - 1) * counts.masked_flops, FLOAT * stepped, FLOAT * (gathered + joint))


def counts_name(case: Case) -> str:
    """Return under which name the record has the counts of a case."""
    return f"counts: {case.network}, p = {case.p}"


@dataclass(frozen=True)
class Model:
    """The cost model of a record; nothing can be said before cases were timed and counted.

    Args:
        record: With the seconds and the counts.
        cases: Those that are fitted to, where they have run.
    """

    record: Record
    cases: Sequence[Case]

    def counts(self, case: Case) -> Counts | None:
        """Return what was counted for a case."""
        found = self.record.results(counts_name(case))
        return Counts(**found[0]) if found else None

    def speeds(self, without: str = "") -> list[float]:
        """Return the seconds of a FLOP and of the two kinds of bytes, fitted to all networks but one, at any batch."""
        rows = [
            [part / median(each["seconds per cycle"][way] for each in found.values())
             for part in work(counts, case, way)]
            for case in self.cases
            if case.network.partition(",")[0] != without.partition(",")[0]
            and (found := self.record.results(case.name))
            and (counts := self.counts(case))
            for way in ("plain", *WAYS)
        ]  # fmt: skip
        return [float(each) for each in nnls(np.array(rows), np.ones(len(rows)))[0]] if rows else []

    def ratio(self, case: Case, way: str) -> float | None:
        """Return the predicted seconds of thin training over plain training, from those of other networks."""
        counts, speeds = self.counts(case), self.speeds(case.network)
        if not counts or not speeds:
            return None
        ours, plain = (np.dot(work(counts, case, each), speeds) for each in (way, "plain"))
        return float(ours / plain)

    def errors(self, case: Case, way: str) -> list[float]:
        """Return by how many per cent the prediction is too large, one a repeat."""
        guess = self.ratio(case, way)
        return [100 * (guess / found - 1) for found in self.record.numbers(case.name, way).values()] if guess else []

    def checked(self) -> list[str]:
        """Return the fitted speeds, and which predictions are off, in words."""
        medians = {
            f"{c.name}, {way}": median(each) for c in self.cases for way in WAYS if (each := self.errors(c, way))
        }
        if not medians:
            return []
        off = [f"{name} ({each:+.0f} %)" for name, each in medians.items() if abs(each) > LIMIT]
        rates = [f"{1 / each / 1e9:.3g}" if each else "infinitely many" for each in self.speeds()]
        return [
            f"Fitted to all: {rates[0]} GFLOP/s; {rates[1]} GB/s in optimizers, {rates[2]} GB/s in gathering.",
            f"Median error {median(medians.values()):+.0f} %, of its absolute value "
            f"{median(map(abs, medians.values())):.0f} %.",
            f"More than {LIMIT} % off: {len(off)} of {len(medians)}{': ' * bool(off)}{'; '.join(off)}.",
        ]

    def split(self, case: Case) -> list[str]:
        """Return where the seconds of a cycle would go, in words."""
        counts, speeds = self.counts(case), self.speeds()
        if not counts or not speeds:
            return []
        parts = [amount * speed for amount, speed in zip(work(counts, case, "resident"), speeds, strict=True)]
        flops, stepped, moved = (f"{part / sum(parts):.0%}" for part in parts)
        step, masked = np.dot(work(counts, case, "plain"), speeds) / case.k, counts.masked_flops / counts.flops
        return [
            f"{case.name}: a plain step {step:.3g} s, a masked one {masked:.0%} of its FLOPs; of "
            f"a resident cycle's time {flops} FLOPs, {stepped} optimizer, {moved} gathering and boosting"
        ]


def sections(cases: Sequence[Case], large: Sequence[Case], preset: str) -> list[Section]:
    """Return the check against what was measured, and the extrapolation."""

    def error(case: Case, way: str) -> Values:
        return lambda record: Model(record, cases).errors(case, way)

    def guess(case: Case, way: str) -> Values:
        return lambda record: [value] if (value := Model(record, cases).ratio(case, way)) else []

    section = partial(Section, "", center="median", full=frozenset({preset}), presets=frozenset({preset}))
    return [
        section(
            "Cost model of thin training: error of the predicted ratio to plain training", "%", 0,
            rows=tuple(Row(f"{case.name}: {way}", error(case, way)) for case in cases for way in WAYS),
            facts=lambda record: Model(record, cases).checked(),
            note="A network's seconds are predicted from those of the other networks: FLOPs, bytes of the optimizer, "
            "bytes of gathering, writing back and boosting, each at a speed of its own.",
        ),
        section(
            "Larger networks, computed, not measured: seconds of training thin networks over plain training",
            found="computed",
            rows=tuple(Row(f"{case.name}: {way}", guess(case, way)) for case in large for way in WAYS),
            facts=lambda record: [said for case in large for said in Model(record, cases).split(case)],
            note="The cost model at the speeds of this record's machine. FLOPs and entries are counted on the networks "
            "themselves; whether they fit into memory is not looked at.",
        ),
    ]  # fmt: skip
