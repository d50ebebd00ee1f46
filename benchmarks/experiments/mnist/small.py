"""Regularization where it is needed: 1,000 and 5,000 training images, every method's p tuned on a validation split.

Goes beyond the paper. Each method gets the same number of trials for its p, judged on the last 5,000 training images;
test images are seen by the chosen p alone, in its last epoch. Methods are compared at equal epochs, and at equal
seconds: what a step costs is measured with all methods in turns in one process, and a method whose steps are cheaper
than plain ones is trained for more epochs.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Literal

import torch

from benchmarks.core.records import Result
from benchmarks.core.runner import Benchmark, Context, Run
from benchmarks.core.timing import interleaved
from benchmarks.data import mnist as mnist_data
from benchmarks.data.mnist import CLASSES, Digits
from benchmarks.experiments.mnist.models import Method, network
from benchmarks.experiments.mnist.small_methods import (
    FEW,
    METHODS,
    PAIRS,
    chosen,
    comparison_key,
    cost_key,
    trial_key,
    trials,
)
from benchmarks.experiments.mnist.small_report import sections
from benchmarks.experiments.mnist.training import Setting, optimizer_of, train, train_epoch

STEPS = 10  # of one timing: whole cycles for every k here
POINTS = 8  # evaluations on the way


@dataclass(frozen=True)
class Size:
    """How many images, for how many epochs of plain SGD, and which methods."""

    images: int
    epochs: int
    methods: tuple[str, ...]


@dataclass(frozen=True)
class SmallConfig:
    """What is spent on tuning and on the comparison; `seeds` are those of the comparison."""

    seeds: int
    sizes: tuple[Size, ...]
    trials: int = len(PAIRS)
    tuning_seeds: int = 1
    validation: int = 5000
    data: Literal["mnist", "digits"] = "mnist"
    batch: int = 50
    width: int = 800
    timings: int = 15


PRESETS = {
    "smoke": SmallConfig(
        seeds=2, sizes=(Size(100, 3, FEW),), trials=2, validation=200, data="digits", batch=25, width=32, timings=1
    ),
    "cpu": SmallConfig(seeds=3, sizes=(Size(1000, 100, tuple(METHODS)), Size(5000, 20, FEW))),
    "gpu": SmallConfig(
        seeds=10, sizes=(Size(1000, 200, tuple(METHODS)), Size(5000, 100, tuple(METHODS))), tuning_seeds=3
    ),
}
PRESETS["paper"] = PRESETS["gpu"]


@dataclass(frozen=True)
class Job:
    """What one run does: a trial of one p, the timing of all chosen ones, or the comparison."""

    what: Literal["trial", "cost", "test"]
    size: Size
    name: str = ""
    p: tuple[float, float] = (0.0, 0.0)


TUNING = 1000  # the first seed of the trials, so that they share none with the comparison


def runs(config: SmallConfig) -> list[Run]:
    """For each number of images: the trials, the timing, then the comparison, one seed after the other."""
    found = []
    for size in config.sizes:
        for seed, name in itertools.product(range(config.tuning_seeds), size.methods):
            for p in trials(METHODS[name], config.trials):
                if METHODS[name].kind != "SGD":
                    found.append(Run(trial_key(size.images, name, p), (TUNING + seed,), Job("trial", size, name, p)))
        found.append(Run(cost_key(size.images), (0,), Job("cost", size)))
        for seed, name in itertools.product(range(config.seeds), size.methods):
            found.append(Run(comparison_key(size.images, name), (seed,), Job("test", size, name)))
    return found


def execute(config: SmallConfig, run: Run, context: Context) -> list[Result]:
    """A trial, the timing, or one seed of the comparison."""
    job: Job = run.options
    digits = replace(mnist_data.load(config.data, context.data_dir).to(context.device), draw=job.size.images)
    if job.what == "cost":
        return [_costs(config, job.size, digits.without_last(config.validation), context)]
    setting = Setting(job.size.epochs, config.batch, config.width)
    if job.what == "trial":
        method = replace(METHODS[job.name], p=job.p)
        curve = train(method, setting, digits.validation(config.validation), run.seeds, evaluate=[setting.epochs])[0]
        return [{"validation accuracy": curve.accuracy[-1]}]
    return [_compare(config, job, setting, digits.without_last(config.validation), run.seeds, context)]


def _costs(config: SmallConfig, size: Size, digits: Digits, context: Context) -> Result:
    """Milliseconds of a step of every method with its chosen p."""

    def steps(method: Method) -> Callable[[], object]:
        model = network(method, [0], (digits.x.shape[1], config.width, CLASSES), stacked=False).to(context.device)
        optimizer, _ = optimizer_of(model, method, Setting(1), 0)
        index = torch.arange(STEPS * config.batch, device=context.device)
        return partial(train_epoch, model, optimizer, digits.x, digits.y, index, config.batch)

    cases = {name: steps(replace(METHODS[name], p=chosen(context.record, size.images, name))) for name in size.methods}
    seconds = interleaved(cases, config.timings, context.device)
    return {name: 1000 * median(times) / STEPS for name, times in seconds.items()}


def _compare(
    config: SmallConfig, job: Job, setting: Setting, digits: Digits, seeds: Sequence[int], context: Context
) -> Result:
    """Test accuracy after as many epochs as plain SGD has, and after as many as fit into its seconds."""
    p = chosen(context.record, job.size.images, job.name)
    cost = context.record.results(cost_key(job.size.images))[0]
    relative = cost[job.name] / cost["SGD"]
    equal = max(1, round(setting.epochs / relative))
    total = max(setting.epochs, equal)
    points = {max(1, total * i // POINTS) for i in range(1, POINTS + 1)} | {setting.epochs, equal}
    curve = train(
        replace(METHODS[job.name], p=p), replace(setting, epochs=total), digits, seeds,
        evaluate=points, track=partial(context.track, what="epochs"),
    )[0]  # fmt: skip
    by_epoch = dict(zip(curve.epoch, curve.accuracy, strict=True))
    return {
        "accuracy": by_epoch[setting.epochs],
        "accuracy at equal seconds": by_epoch[equal],
        "epochs at equal seconds": equal,
        "relative cost": relative,
        "training seconds": curve.seconds[-1],
        "p input": p[0],
        "p hidden": p[1],
        "accuracy per evaluation": curve.accuracy,
        "epoch per evaluation": curve.epoch,
        "plain epochs per evaluation": [epoch * relative for epoch in curve.epoch],
    }


SECTIONS = tuple(
    section
    for names in (("cpu",), ("gpu", "paper"))
    for size in PRESETS[names[0]].sizes
    for section in sections(size.images, size.methods, frozenset(names))
)

BENCHMARK = Benchmark("mnist-small", PRESETS, runs, execute, SECTIONS)
