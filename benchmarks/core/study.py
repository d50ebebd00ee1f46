"""Methods compared at equal steps and at equal seconds: search, timing, comparison and resuming for any experiment.

An experiment names its methods (frozen dataclasses), the `Comparison`s that follow from a configuration, and builds
trainings, usually `training.Loop`s; docs/adding-an-experiment.md has a whole one.

Everything else follows. Options of a method are tried on "validation" with seeds that the comparison does not use; the
best ones replace the method's fields. A step of every method is timed with all methods in turns in one process. Then
every method and seed is trained once, for as many steps as its budgets of steps and of the baseline's seconds ask for,
and evaluated on "test" at each of them. Where a schedule depends on the length of a training (`scheduled`), equal steps
and equal seconds are two trainings. `sections.Shown` makes the report.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from functools import partial
from itertools import product
from statistics import fmean, median
from typing import Generic, Literal, TypeVar

from benchmarks.core.comparison import TUNING, Comparison, Job, Options
from benchmarks.core.records import Config, Result
from benchmarks.core.runner import Benchmark, Context, Run
from benchmarks.core.sections import Section, Shown
from benchmarks.core.timing import interleaved
from benchmarks.core.training import Curve, Plan, Trainer, fit

C = TypeVar("C", bound=Config)
M = TypeVar("M")
Curves = Mapping[str, Sequence[float]]
"""What was found on the way of a training, by name: "accuracy", "validation loss"."""
Summary = Callable[[Curves], Mapping[str, float]]


def last(curves: Curves) -> Mapping[str, float]:
    """Take the numbers of the end."""
    return {name: curve[-1] for name, curve in curves.items()}


def late(curves: Curves) -> Mapping[str, float]:
    """Take the means of the last quarter of the evaluations."""
    return {name: fmean(curve[3 * len(curve) // 4 :]) for name, curve in curves.items()}


def at_best_validation(curves: Curves) -> Mapping[str, float]:
    """Take the numbers where that on validation data was best: a loss is best where it is smallest."""
    name = next(each for each in curves if each.startswith("validation"))
    sign = -1.0 if name.endswith("loss") else 1.0
    scores = [-math.inf if math.isnan(value) else sign * value for value in curves[name]]
    best = scores.index(max(scores))
    return {name: curve[best] for name, curve in curves.items()}


@dataclass(frozen=True)
class Task(Generic[M]):
    """The work of one run of the record."""

    what: Literal["costs", "trial", "compare"]
    comparison: Comparison[M]
    name: str = ""
    options: Options = field(default_factory=dict)


@dataclass(frozen=True)
class Spent:
    """The steps that a method takes in the seconds of each budget of the baseline, which are its own if not counted."""

    steps: tuple[int, ...]
    seconds: tuple[float, ...] = ()  # of those, by the timing; empty where nobody's seconds are counted
    relative: float = 1.0  # seconds of a step on the way to the last of them, over the baseline's


@dataclass(frozen=True)
class Study(Generic[C, M]):
    """An experiment that compares methods."""

    name: str  # as on the command line
    presets: Mapping[str, C]  # configurations by name
    # what is compared under a configuration, in the order in which it is worth having
    comparisons: Callable[[C], Sequence[Comparison[M]]]
    # makes the trainer of a method and a seed. Seeds torch's random state itself
    build: Callable[[C, M, int, Job], Trainer]
    metric: str = "accuracy"  # what `Trainer.evaluate` returns, in a word, and its unit
    lower: bool = False  # less of it is better
    summary: Summary = last  # the number of a training, from what was found on the way
    data: str | Callable[[C], str] = ""  # on which data a configuration trains, in words

    def benchmark(self, sections: Sequence[Section] = (), shown: Sequence[Shown] = ()) -> Benchmark[C]:
        """Return the study as a benchmark with what the report and the documentation show of it."""
        return Benchmark(self.name, self.presets, self.runs, self.execute, tuple(sections), self.data, tuple(shown))

    def runs(self, config: C) -> list[Run]:
        """Return every run: of each comparison the timing, the trials, and each seed of each method."""
        found: dict[str, Run] = {}
        for comparison in self.comparisons(config):
            for run in self._runs(comparison):
                found.setdefault(run.key, run)  # comparisons may share a timing and trials
        return list(found.values())

    def _runs(self, comparison: Comparison[M]) -> list[Run]:
        costs, search = comparison.costs, comparison.search
        timing = [Run(costs.name, (0,), Task("costs", comparison))] if costs else []
        trials = [
            Run(search.trial(name, options), (TUNING,), Task("trial", comparison, name, options))
            for name, grid in search.grid.items()
            for options in grid
        ] if search else []  # fmt: skip
        compared = [
            Run(f"{comparison.prefix}{name}", (seed,), Task("compare", comparison, name))
            for seed, name in product(range(comparison.seeds), comparison.methods)
        ]
        first = timing + trials if search and search.at == "seconds" else trials + timing
        return first + compared

    def execute(self, config: C, run: Run, context: Context) -> list[Result]:
        execution: _Execution[C, M] = _Execution(self, config, run.options, run.seeds[0], context)
        return [execution.costs() if execution.task.what == "costs" else execution.result()]


@dataclass(frozen=True)
class _Execution(Generic[C, M]):
    """One run of a study: a timing of all methods, or a training."""

    study: Study[C, M]
    config: C
    task: Task[M]
    seed: int
    context: Context

    def costs(self) -> Result:
        """Return the median seconds of a step of every method that is charged by its own, and those of every turn."""
        comparison = self.task.comparison
        costs = comparison.costs
        assert costs is not None
        chosen = {name: self._method(name)[0] for name in comparison.methods}
        timed = {name: method for name, method in chosen.items() if costs.charge(name, method, 0) == name}
        trainers = {name: self._trainer(name, method, costs.cycle) for name, method in {**timed, **costs.also}.items()}

        def turn(trainer: Trainer) -> None:
            for _ in range(costs.cycle):
                trainer.step()

        cases = {name: partial(turn, trainer) for name, trainer in trainers.items()}
        timed_turns = interleaved(cases, costs.turns, self.context.device, warmup=1)
        steps = {name: [seconds / costs.cycle for seconds in each] for name, each in timed_turns.items()}
        medians = {name: median(each) for name, each in steps.items()}
        return {**medians, "all": steps}

    def result(self) -> Result:
        """Train, and return what is kept."""
        task, comparison = self.task, self.task.comparison
        method, options = self._method(task.name)
        trial = task.what == "trial"
        counted = comparison.costs is not None and not (trial and comparison.search and comparison.search.at == "steps")
        spent = self._equal(method) if counted else Spent(comparison.budgets)
        if comparison.scheduled and spent.steps != comparison.budgets and not trial:
            by_steps, by_seconds = self._fit(method, comparison.budgets), self._fit(method, spent.steps)
        else:
            watched = not trial or "validation" in comparison.splits
            ends = {*comparison.budgets, *spent.steps} if watched else {spent.steps[-1]}
            by_steps = by_seconds = self._fit(method, ends)
        return {**(self._trial if trial else self._kept)(by_steps, by_seconds, spent), **options}

    def _trial(self, by_steps: Curve, by_seconds: Curve, spent: Spent) -> Result:
        """Return what is kept of a trial: nothing but what it is judged by."""
        found = self.study.summary(self._numbers(by_seconds, spent.steps))
        return {name: value for name, value in found.items() if name.startswith("validation")}

    def _numbers(self, curve: Curve, steps: Sequence[int]) -> dict[str, list[float]]:
        """Return what was found after so many steps (up to where patience ended), by name.

        Numbers on the split "test" have the metric's name, those on another split have the split's before it.
        """
        metric = self.study.metric
        return {
            metric if split == "test" else f"{split} {metric}": [found[step] for step in steps if step in found]
            for split, found in curve.values.items()
        }

    def _kept(self, by_steps: Curve, by_seconds: Curve, spent: Spent) -> Result:
        """Return what is kept of a training; the names are the same in every record."""
        budgets, summary = self.task.comparison.budgets, self.study.summary
        steps, seconds = self._numbers(by_steps, budgets), self._numbers(by_seconds, spent.steps)
        times = {step: by_steps.times[step] for step in budgets if step in by_steps.times}
        kept = {
            **summary(steps),
            **{f"{name} by step": curve for name, curve in steps.items()},
            "step": list(times),
            "training seconds": by_steps.seconds,
            "training seconds by step": list(times.values()),
        }
        if spent.seconds:
            kept |= {f"{name} at equal seconds": value for name, value in summary(seconds).items()}
            kept |= {f"{name} by time": curve for name, curve in seconds.items()}
            kept |= {"seconds": list(spent.seconds), "steps at equal seconds": spent.steps[-1]}
            kept |= {"relative cost": spent.relative}
        return kept

    def _method(self, name: str) -> tuple[M, Options]:
        """Return a method with its options: those on trial, or the chosen ones."""
        comparison = self.task.comparison
        method = comparison.methods[name]
        options = self.task.options or (
            comparison.search.chosen(self.context.record, name) if comparison.search else {}
        )
        if not options:
            return method, options
        assert is_dataclass(method)
        assert not isinstance(method, type)
        return replace(method, **options), options

    def _equal(self, method: M) -> Spent:
        """Return as many steps as fit into the seconds of each budget.

        A step belongs to a budget if at least half of it lies within; the first one always does. The seconds of one
        step are the mean up to the last budget, over those of the baseline.
        """
        comparison, costs = self.task.comparison, self.task.comparison.costs
        assert costs is not None
        measured = self.context.record.results(costs.name)[0]
        baseline = measured[costs.baseline]
        spent, steps, found = 0.0, 0, []
        for budget in comparison.budgets:
            while True:
                cost = float(measured[costs.charge(self.task.name, method, steps)])
                if steps and spent + cost / 2 > budget * baseline * (1 + 1e-9):
                    break
                spent, steps = spent + cost, steps + 1
            found.append((steps, spent))
        equal, seconds = zip(*found, strict=True)
        return Spent(equal, seconds, spent / steps / baseline)

    def _fit(self, method: M, at: Collection[int]) -> Curve:
        comparison = self.task.comparison
        trainer = self._trainer(self.task.name, method, max(at))
        splits = ("validation",) if self.task.what == "trial" else comparison.splits
        plan = Plan(at, splits, comparison.patience, self.study.lower)
        return fit(trainer, plan, self.context.device, self.context.checkpoint(f"{max(at)}"))

    def _trainer(self, name: str, method: M, steps: int) -> Trainer:
        setting, context = self.task.comparison.setting, self.context
        job = Job(self.task.what, steps, setting, context.device, context.data_dir, name)
        return self.study.build(self.config, method, self.seed, job)
