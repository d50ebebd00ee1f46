"""Readings of the paper's MNIST experiment, and how near each comes to its tables.

Its text names h = 0.1, a single hidden layer, and weights "de-activated with a probability of 0.8 and 0.5". It gives
neither width, batch size, epochs nor, for this experiment, the momentum (0.9 "unless indicated otherwise"), its
probabilities may be those of being kept, as in the original Dropout paper, a cycle may have k steps or k + 1, and a
collapse to 61-89 % at k = 3 alone asks for an explanation. One is tried: an evaluation with the weights as the epoch
leaves them, where a loop counts its batches anew in every epoch (as the loop does that the authors publish for
fine-tuning), so that at k = 3 the mask is on.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean
from typing import Literal

from benchmarks.core import stats
from benchmarks.core.comparison import Comparison, Job, Outcome, each_epoch
from benchmarks.core.records import Record, Result
from benchmarks.core.sections import Paper, Row, Section, metric
from benchmarks.core.study import Study
from benchmarks.data import mnist as mnist_data
from benchmarks.experiments.mnist.training import AS_LEFT, Method, Setting, Training, begin

TABLE = {3: Paper(76.16, 61.31, 89.41), 5: Paper(98.30, 98.17, 98.44), 10: Paper(98.22, 98.11, 98.29)}
"""The paper's test accuracy by k: mean, smallest and largest of 10 runs."""

P = {"0.8/0.5 at zero": (0.8, 0.5), "0.8/0.5 kept": (0.2, 0.5)}


@dataclass(frozen=True)
class Reading:
    """One way to read the paper."""

    p: str
    momentum: float = 0.9
    batch: int = 128
    width: int = 800
    longer: bool = False  # k masked steps and a joint one, instead of k in all
    standardized: bool = False
    restart: bool = True

    @property
    def name(self) -> str:
        parts = [self.p, f"momentum {self.momentum:g}", f"batch {self.batch}"]
        parts += [f"width {self.width}"] if self.width != Reading.width else []
        parts += ["cycle k + 1"] if self.longer else []
        parts += ["pixels standardized"] if self.standardized else []
        parts += [] if self.restart else ["cycles run on"]
        return ", ".join(parts)

    def method(self, k: int) -> Method:
        """The masks of this reading."""
        return Method("masks", P[self.p], k + 1 if self.longer else k, boost=k)


def readings() -> Iterator[Reading]:
    """The two that matter most in all combinations, then one change at a time."""
    for momentum, p in product((0.9, 0.0), P):
        yield Reading(p, momentum)
    for momentum, p in product((0.9, 0.0), P):
        yield Reading(p, momentum, width=100)
    for p in P:
        yield Reading(p, longer=True)
    literal, kept = P
    yield Reading(literal, standardized=True)
    yield Reading(literal, restart=False)
    yield Reading(kept, momentum=0.0, batch=64)


READINGS = {reading.name: reading for reading in readings()}


@dataclass(frozen=True)
class SearchConfig:
    """Seeds and epochs that are spent on each reading."""

    seeds: int
    epochs: int
    readings: tuple[str, ...] = tuple(READINGS)
    data: Literal["mnist", "digits"] = "mnist"
    stacked: bool = False


PRESETS = {
    "smoke": SearchConfig(seeds=1, epochs=2, readings=tuple(READINGS)[:2], data="digits"),
    "cpu": SearchConfig(seeds=2, epochs=8),
    "gpu": SearchConfig(seeds=10, epochs=100, stacked=True),
    "paper": SearchConfig(seeds=10, epochs=100),
}


def _method(reading: str, k: int) -> str:
    return f"{reading} | k = {k}"


def epochs(data: str, batch: int, count: int) -> tuple[int, ...]:
    """Return the steps after each epoch."""
    return each_epoch(-(-mnist_data.IMAGES[data] // batch), count)


def comparisons(config: SearchConfig) -> list[Comparison[tuple[Reading, int]]]:
    """Return every reading at every k, in one comparison for each size of batches."""
    by_batch: dict[int, list[Reading]] = {}
    for name in config.readings:
        by_batch.setdefault(READINGS[name].batch, []).append(READINGS[name])
    return [
        Comparison(
            {_method(reading.name, k): (reading, k) for reading in found for k in TABLE},
            config.seeds, epochs(config.data, batch, config.epochs), splits=("test", AS_LEFT), together=config.stacked,
        )
        for batch, found in by_batch.items()
    ]  # fmt: skip


def build(config: SearchConfig, method: tuple[Reading, int], seed: int, job: Job) -> Training:
    """Return the training under one reading."""
    reading, k = method
    digits = mnist_data.load(config.data, job.data_dir).to(job.device)
    setting = Setting(
        reading.batch, reading.width, momentum=reading.momentum, restart=reading.restart, stacked=config.stacked
    )
    return begin(reading.method(k), setting, digits.standardized() if reading.standardized else digits, job.seeds)


def result(config: SearchConfig, outcome: Outcome[tuple[Reading, int]]) -> Result:
    """Return accuracy after every epoch, with all weights and with those that it leaves."""
    curve, left = outcome.at_steps(), outcome.at_steps(AS_LEFT)
    return {
        "final": curve[-1],
        "best": max(curve),
        "final, as left": left[-1],
        "accuracy per epoch": curve,
        "accuracy as left per epoch": left,
    }


EVALUATIONS = ("final", "best", "final, as left")


def distance(record: Record, reading: str, evaluation: str, ks: Sequence[int] = tuple(TABLE)) -> float:
    """Mean over k of how far the mean over seeds is from the paper's; nan where runs are missing."""
    ours = [stats.summarize(record.numbers(_method(reading, k), evaluation).values()).mean for k in ks]
    return fmean(abs(mean - TABLE[k].mean) for mean, k in zip(ours, ks, strict=True))


def facts(record: Record) -> list[str]:
    """The readings that come nearest to the paper, with and without its k = 3, in words."""
    found = []
    for ks, what in (((3, 5, 10), "all of the table"), ((5, 10), "k = 5 and 10 only")):
        ranked = sorted(
            (distance(record, name, evaluation, ks), name, evaluation)
            for name in record.config["readings"]
            for evaluation in EVALUATIONS
            if all(record.results(_method(name, k)) for k in ks)
        )
        for points, name, evaluation in ranked[:3]:
            ours = [stats.summarize(record.numbers(_method(name, k), evaluation).values()) for k in ks]
            figures = " / ".join(f"{each.mean:.2f}" for each in ours)
            found.append(
                f"Nearest to {what}: {name}; {evaluation} epoch: {figures} for k = "
                f"{' / '.join(map(str, ks))}, on average {points:.2f} points from the paper."
            )
    return [*found, *phases()]


def phases() -> list[str]:
    """At which batch sizes an epoch ends with the mask on at k = 3, but not at k = 5 and 10."""
    sizes = []
    for batch in range(16, 513):
        steps = -(-60_000 // batch)
        # before the joint step, at k - 1 steps of k, all weights are there; everywhere else a mask is on
        if steps % 3 != 2 and steps % 5 == 4 and steps % 10 == 9:
            sizes.append(batch)
    return [
        "Where every epoch begins a new cycle, an epoch ends with the mask on at k = 3 but with all weights at k = 5 "
        f"and 10 for {len(sizes)} of the batch sizes from 16 to 512, among them: "
        f"{', '.join(str(size) for size in sizes if size & (size - 1) == 0 or size % 50 == 0) or 'no usual one'}."
    ]


def _section(evaluation: str, title: str) -> Section:
    rows = tuple(
        Row(f"{name}: k = {k}", metric(_method(name, k), evaluation), paper)
        for name in READINGS
        for k, paper in TABLE.items()
    )
    return Section("", title, "%", rows=rows)


SECTIONS = (
    Section(
        "", "Search over readings of the MNIST tables: which come nearest", "%", facts=facts,
        note="One hidden layer, h = 0.1. `As left` evaluates with the weights that the next step would use; other "
        "figures are with all weights. No batch size, width or number of epochs is in the paper.",
    ),
    _section("final", "Search: all weights, last epoch"),
    _section("best", "Search: all weights, best epoch"),
    _section("final, as left", "Search: weights as an epoch leaves them, last epoch"),
)  # fmt: skip

STUDY = Study(
    "mnist-search", PRESETS, comparisons, build, result=result, data=lambda config: mnist_data.NAMES[config.data]
)  # fmt: skip
BENCHMARK = STUDY.benchmark(SECTIONS)
