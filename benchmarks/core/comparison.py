"""Comparisons of methods as data: what is searched, what is timed, how long everyone trains."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import torch

from benchmarks.core.records import Record, Result

M = TypeVar("M")
Options = Mapping[str, Any]
"""Fields of a method, and the values that replace them."""

TUNING = 1000  # the seed of trials, which the comparison does not use


def evenly(steps: int, points: int) -> tuple[int, ...]:
    """Return budgets of steps, evenly spread, the last one being all of them."""
    return tuple(sorted({max(1, steps * i // points) for i in range(1, points + 1)}))


def each_epoch(steps: int, epochs: int) -> tuple[int, ...]:
    """Return budgets of steps that end with every epoch."""
    return tuple(steps * done for done in range(1, epochs + 1))


def named(options: Options) -> str:
    """Return options in words, as the record has them."""

    def said(value: Any) -> str:
        if isinstance(value, tuple | list):
            return "/".join(map(said, value))
        return f"{value:g}" if isinstance(value, float) else f"{value}"

    return ", ".join(f"{name} = {said(value)}" for name, value in options.items())


def least_loss(result: Result) -> float:
    """Score a trial by its validation loss."""
    return -float(result["validation loss"])


@dataclass(frozen=True)
class Search:
    """Options that are tried on validation data before methods are compared."""

    # what is tried for each method; the first of the best is used. Methods that are not here have no options
    grid: Mapping[str, Sequence[Options]]
    like: Mapping[str, str] = field(default_factory=dict)  # methods that take what the search has found for another one
    of: str = ""  # a word before the names of trials in the record, where there are several searches
    at: Literal["steps", "seconds"] = "steps"  # trials end at the baseline's steps, or at its seconds
    # how good a trial's result is: more is better
    score: Callable[[Result], float] = lambda result: float(result["validation accuracy"])

    def trial(self, name: str, options: Options) -> str:
        """Return the name of a trial in the record."""
        return f"search{' ' * bool(self.of)}{self.of}: {name}, {named(options)}"

    def tried(self, record: Record, name: str) -> list[tuple[Options, float]]:
        """Return what was tried for a method, with the score of its trial; only what has run."""
        return [
            (options, self._score(result))
            for options in self.grid.get(name, ())
            for result in record.results(self.trial(name, options)).values()
        ]

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
    """The timing of steps: every method takes `cycle` steps, then the next one, for `turns` turns."""

    baseline: str  # the method whose seconds everyone gets
    turns: int = 15  # timed ones; one before them is not
    cycle: int = 10  # steps of a turn: whole cycles of every k
    name: str = "costs"  # in the record
    also: Mapping[str, M] = field(default_factory=dict)  # timed, but not compared
    # the name of the timing that a method's step is charged by, where a method's steps change
    charge: Callable[[str, M, int], str] = lambda name, method, step: name


@dataclass(frozen=True)
class Comparison(Generic[M]):
    """Methods that are compared with each other.

    Trials are evaluated on "validation" alone; where that is among the splits, at every budget.
    """

    methods: Mapping[str, M]  # by name; a method whose options are searched is a dataclass
    seeds: int  # trainings of each
    # after how many steps of the baseline methods are compared, ascending; the last is the whole budget
    budgets: tuple[int, ...]
    costs: Costs[M] | None = None  # None compares at equal steps only
    search: Search | None = None  # None takes the methods as they are
    setting: Any = None  # what else `build` has to know
    prefix: str = ""  # before a method's name in the record
    splits: tuple[str, ...] = ("test",)  # what is evaluated
    scheduled: bool = False  # the training depends on how many steps it will have
    patience: int | None = None  # as in `training.Plan`, on the first split


@dataclass(frozen=True)
class Job:
    """The circumstances of a training: what `build` gets beside configuration, method and seed."""

    # steps are timed, a trial is judged on validation data, or methods are compared
    what: Literal["costs", "trial", "compare"]
    steps: int  # how long the training will be (schedules need it)
    setting: Any  # of the comparison
    device: torch.device  # where to train
    data_dir: Path | None  # where real data are
    name: str  # of the method
