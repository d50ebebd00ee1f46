"""Comparisons of methods as data: what is searched, what is timed, how long everyone trains."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Generic, Literal, TypeVar

import torch

from benchmarks.core.records import Record, Result
from benchmarks.core.training import Curve, Trainer

M = TypeVar("M")
Options = Mapping[str, Any]
"""Fields of a method, and the values that replace them."""

TUNING = 1000  # the first seed of trials, which share none with the comparison


def evenly(steps: int, points: int) -> tuple[int, ...]:
    """Return budgets of steps, evenly spread, the last one being all of them."""
    return tuple(sorted({max(1, steps * i // points) for i in range(1, points + 1)}))


def named(options: Options) -> str:
    """Return options in words, as the record has them."""
    return ", ".join(f"{name} = {value:g}" if isinstance(value, float) else f"{name} = {value}"
                     for name, value in options.items())  # fmt: skip


@dataclass(frozen=True)
class Search:
    """Options that are tried on validation data before methods are compared.

    Args:
        grid: What is tried for each method; the first of the best is used. Methods that are not here have no options.
        like: Methods that take what the search has found for another one.
        trial: The name of a trial in the record.
        seeds: Trainings of each.
        at: Trials end at the baseline's steps, or at its seconds.
        score: How good a trial's result is: more is better.
    """

    grid: Mapping[str, Sequence[Options]]
    like: Mapping[str, str] = field(default_factory=dict)
    trial: Callable[[str, Options], str] = lambda name, options: f"search: {name}, {named(options)}"
    seeds: int = 1
    at: Literal["steps", "seconds"] = "steps"
    score: Callable[[Result], float] = lambda result: float(result["validation accuracy"])

    def tried(self, record: Record, name: str) -> list[tuple[Options, float]]:
        """Return what was tried for a method, with the mean score of its trials; only what has run."""
        found = [(options, record.results(self.trial(name, options)).values()) for options in self.grid.get(name, ())]
        return [(options, fmean(map(self._score, results))) for options, results in found if results]

    def _score(self, result: Result) -> float:
        """Return the score, the worst one where numbers are missing since the training has diverged."""
        score = self.score({name: math.nan if value is None else value for name, value in result.items()})
        return -math.inf if math.isnan(score) else score

    def chosen(self, record: Record, name: str) -> Options:
        """Return the options with which a method, or the one it is like, does best on validation data."""
        source = self.like.get(name, name)
        if source not in self.grid:
            return {}
        found = self.tried(record, source)
        return max(found, key=lambda each: each[1])[0] if found else self.grid[source][0]


@dataclass(frozen=True)
class Costs(Generic[M]):
    """The timing of steps: every method takes `cycle` steps, then the next one, for `turns` turns.

    Args:
        baseline: The method whose seconds everyone gets.
        turns: Timed ones; one before them is not.
        cycle: Steps of a turn: whole cycles of every k.
        name: In the record.
        also: Timed, but not compared.
        charge: The name of the timing that a method's step is charged by, where a method's steps change.
    """

    baseline: str
    turns: int = 15
    cycle: int = 10
    name: str = "costs"
    also: Mapping[str, M] = field(default_factory=dict)
    charge: Callable[[str, M, int], str] = lambda name, method, step: name


@dataclass(frozen=True)
class Comparison(Generic[M]):
    """Methods that are compared with each other.

    Args:
        methods: By name; a method whose options are searched is a dataclass.
        seeds: Trainings of each.
        budgets: After how many steps of the baseline methods are compared, ascending; the last is the whole budget.
        costs: None compares at equal steps only.
        search: None takes the methods as they are.
        setting: What else `build` has to know.
        prefix: Before a method's name in the record.
        splits: What is evaluated.
        first_seed: Of the seeds.
        scheduled: The training depends on how many steps it will have.
        patience: As in `training.Plan`, on the first split.
        together: All seeds are one run: `build` makes one trainer for `job.seeds`, which evaluates to a list.

    Where "validation" is among the splits, trials too are evaluated on all of them and at every budget.
    """

    methods: Mapping[str, M]
    seeds: int
    budgets: tuple[int, ...]
    costs: Costs[M] | None = None
    search: Search | None = None
    setting: Any = None
    prefix: str = ""
    splits: tuple[str, ...] = ("test",)
    first_seed: int = 0
    scheduled: bool = False
    patience: int | None = None
    together: bool = False

    @property
    def watched(self) -> bool:
        return "validation" in self.splits


@dataclass(frozen=True)
class Job:
    """The circumstances of a training: what `build` gets beside configuration, method and seed.

    Args:
        what: Training on which steps are timed, trials are judged on validation data, or methods are compared.
        steps: How long the training will be (schedules need it).
        setting: Of the comparison.
        device: Where to train.
        data_dir: Where real data are.
        name: Of the method.
        seeds: All that are trained together, else the one.
    """

    what: Literal["costs", "trial", "compare"]
    steps: int
    setting: Any
    device: torch.device
    data_dir: Path | None
    name: str
    seeds: tuple[int, ...] = ()


@dataclass(frozen=True)
class Outcome(Generic[M]):
    """The yield of one training, from which `Study.result` makes what is put into the record.

    Args:
        what: "trial" or "compare".
        name: Of the method.
        method: With the options it had.
        options: Those that were tried or chosen.
        setting: Of the comparison.
        budgets: Steps of the baseline.
        equal: As many steps of this method as fit into the seconds of each.
        seconds: Of those, by the timing; empty where nobody's seconds are counted.
        relative: Seconds of a step on the way to the last of them, over the baseline's.
        by_steps: The training to the budgets of steps.
        by_seconds: The training to the budgets of seconds; the same one unless it is scheduled.
        trainer: At the end of the latter.
        place: Of the seed among those that were trained together.
    """

    what: str
    name: str
    method: M
    options: Options
    setting: Any
    budgets: tuple[int, ...]
    equal: tuple[int, ...]
    seconds: tuple[float, ...]
    relative: float
    by_steps: Curve
    by_seconds: Curve
    trainer: Trainer
    place: int = 0

    def at_steps(self, split: str = "test") -> list[float]:
        """Return what was found at equal steps, budget by budget (up to where patience ended)."""
        found = self.by_steps.values[split]
        return [found[step] for step in self.budgets if step in found]

    def at_seconds(self, split: str = "test") -> list[float]:
        """Return what was found at equal seconds, budget by budget."""
        found = self.by_seconds.values[split]
        return [found[step] for step in self.equal if step in found]

    def last(self, split: str = "validation") -> float:
        """Return what was found at the end."""
        return list(self.by_seconds.values[split].values())[-1]
