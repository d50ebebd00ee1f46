"""Masks beside SGD and dropout on real handwritten digits that ship with scikit-learn; nothing is downloaded.

Regularization matters where data are few: 100 training images. Every method is tuned by the same number of trainings on
validation images, then trained anew for each seed (which draws the training images and the weights), and judged on 900
test images that played no part before. The last epoch counts, not the best.
"""

from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.core import records
from benchmarks.core import runner as harness
from benchmarks.core.comparison import Comparison, Job, Options, Outcome, Search, named
from benchmarks.core.records import Record, Result
from benchmarks.core.registry import REGISTERED
from benchmarks.core.runner import Benchmark
from benchmarks.core.sections import Bars, Curves, Row, Section, gain, metric
from benchmarks.core.study import Study
from benchmarks.core.study_sections import differences
from benchmarks.core.training import Batch, Batches, Loop, shuffled
from benchmarks.data import mnist as mnist_data
from benchmarks.report import pages as report
from mrreg import MultirateMask, attach

P_INPUT = 0.2  # as usual, less is dropped from the images than from hidden layers
TEST = 900


@dataclass(frozen=True)
class Method:
    """A way to train, with its step size and its strength; all but the kind are searched."""

    kind: str
    lr: float = 0.2
    p: float = 0.0
    k: int = 5
    weight_decay: float = 0.0


METHODS = {name: Method(name) for name in ("SGD", "dropout", "masks (weights)", "masks (units)")}
STRENGTHS: dict[str, tuple[Options, Options]] = {
    "SGD": ({}, {"weight_decay": 1e-3}),
    "dropout": ({"p": 0.3}, {"p": 0.5}),
    "masks (weights)": ({"p": 0.3}, {"p": 0.5}),
    "masks (units)": ({"p": 0.5, "k": 2}, {"p": 0.5, "k": 5}),
}
GRID = {
    name: [{"lr": lr, **strength} for lr, strength in product((0.2, 0.4, 0.8), each)]
    for name, each in STRENGTHS.items()
}
"""The candidates of every method: as many for each."""
PAIRS = [(one, other) for other in ("SGD", "dropout") for one in METHODS if one not in {"SGD", other}]


@dataclass(frozen=True)
class DemoConfig:
    """The size of data, network and search."""

    seeds: int = 10
    tuning_seeds: int = 2
    epochs: int = 120
    every: int = 10  # epochs between two looks at the test images
    images: int = 100
    batch: int = 20
    width: int = 256


PRESETS = {"demo": DemoConfig(), "smoke": DemoConfig(seeds=3, tuning_seeds=1, epochs=2, every=1, width=16)}


def comparisons(config: DemoConfig) -> list[Comparison[Method]]:
    """Return the one comparison, at equal epochs."""
    epoch = -(-config.images // config.batch)
    looks = tuple(epoch * done for done in range(config.every, config.epochs + 1, config.every))
    return [Comparison(METHODS, config.seeds, looks, search=Search(GRID, seeds=config.tuning_seeds))]


def split(seed: int, images: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the images for training, validation and test; the test images are the same for every seed."""
    order = torch.randperm(len(digits()[1]), generator=torch.Generator().manual_seed(0))
    rest = order[TEST:][torch.randperm(len(order) - TEST, generator=torch.Generator().manual_seed(seed))]
    return rest[:images], rest[images:], order[:TEST]


def digits() -> tuple[Tensor, Tensor]:
    """Return all images, (1797, 64), and their labels."""
    parts = mnist_data.load("digits", None)
    return torch.cat([parts.x, parts.test_x]), torch.cat([parts.y, parts.test_y])


def network(method: Method, width: int) -> nn.Sequential:
    """Return 64 - width - width - 10, regularized at the input of every layer."""
    sizes = [(64, width, P_INPUT), (width, width, method.p), (width, 10, method.p)]
    layers: list[nn.Module] = []
    for inputs, outputs, p in sizes:
        linear = nn.Linear(inputs, outputs)
        match method.kind:
            case "dropout":
                layers += [nn.Dropout(p), linear]
            case "masks (weights)":
                layers.append(MultirateMask(linear, p, method.k, rescale=True))
            case "masks (units)":
                layers.append(MultirateMask(linear, p, method.k, structure="input", rescale=True))
            case _:
                layers.append(linear)
        layers.append(nn.ReLU())
    return nn.Sequential(*layers[:-1])


def build(config: DemoConfig, method: Method, seed: int, job: Job) -> Loop:
    """Return a training with a step size that falls to zero."""
    x, y = digits()
    training, validation, test = split(seed, config.images)
    torch.manual_seed(seed)
    model = network(method, config.width)
    optimizer = torch.optim.SGD(model.parameters(), lr=method.lr, weight_decay=method.weight_decay)
    if method.kind.startswith("masks"):
        attach(optimizer, model, seed=seed)

    def before(step: int) -> None:
        optimizer.param_groups[0]["lr"] = method.lr * (1 - step / job.steps)

    def take(index: Tensor) -> Batch:
        return x[index], y[index]

    batches = Batches(
        shuffled(config.images, config.batch), lambda index: take(training[index]), torch.Generator().manual_seed(seed)
    )
    splits = {"validation": lambda: [take(validation)], "test": lambda: [take(test)]}
    return Loop(model, optimizer, batches, splits, before=before)


def result(config: DemoConfig, outcome: Outcome[Method]) -> Result:
    """Return accuracy after the last epoch and on the way to it; only training counts as seconds."""
    if outcome.what == "trial":
        return {"validation accuracy": outcome.last()}
    return {
        "accuracy": outcome.at_steps()[-1],
        "seconds": outcome.by_steps.seconds,
        "accuracy per look": outcome.at_steps(),
        "epoch per look": [config.epochs * step / outcome.budgets[-1] for step in outcome.budgets],
        "seconds per look": list(outcome.by_steps.times.values()),
    }


STUDY = Study("demo", PRESETS, comparisons, build, result=result, data="scikit-learn's digits")
BENCHMARK = STUDY.benchmark()


def sections(preset: str) -> tuple[Section, ...]:
    """Return the report: accuracy with paired differences, and its cost."""
    config = PRESETS[preset]
    note = (
        f"scikit-learn's digits: {config.images} images to train on, {TEST} to test on, the rest for validation. "
        f"Network 64 - {config.width} - {config.width} - 10, batches of {config.batch}, {config.epochs} epochs, step "
        f"size falling to zero; {len(GRID['SGD'])} settings of every method tried {config.tuning_seeds} times each "
        "on validation images. Accuracy after the last epoch; each seed draws other training images, the same for all."
    )
    names = {method: method for method in METHODS}

    def curves(x: str, xlabel: str) -> Curves:
        return Curves(names, "accuracy per look", xlabel, "test accuracy [%]", x=x, ylim=(70, 95))

    return (
        Section(
            "", f"Digits from {config.images} training images", "%",
            rows=tuple(Row(method, metric(method, "accuracy")) for method in METHODS),
            plots=(Bars("test accuracy [%]"), curves("epoch per look", "epoch")), note=note, facts=chosen,
        ),
        Section(
            "", "Better than SGD, better than dropout? Differences paired by seed", "points",
            rows=tuple(Row(f"{one} - {other}", gain(one, other, "accuracy")) for one, other in PAIRS),
            plots=(Bars("difference of test accuracy [points]"),),
            note="Within noise: the 95 % t-interval of the differences contains zero.",
            facts=partial(differences, pairs=PAIRS, name="accuracy"),
        ),
        Section(
            "", "Seconds of one training", "s", center="median",
            rows=tuple(Row(method, metric(method, "seconds")) for method in METHODS),
            plots=(curves("seconds per look", "seconds"),),
            note=(
                "The network is so small that Python's overhead decides. What masks cost or save on larger ones: "
                "python -m benchmarks speed masks"
            ),
        ),
    )  # fmt: skip


def chosen(record: Record) -> list[str]:
    """Return the choices of the search."""
    choices = [f"{method}: {named(Search(GRID).chosen(record, method))}" for method in METHODS]
    return [f"Chosen on validation images: {'; '.join(choices)}."]


def run(out: Path, preset: str) -> None:
    """Run the demo and a short spiral, write the report, and print its path and the outcome."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # more only wait for each other on matrices this small
    try:
        shown = [(_record(BENCHMARK, preset, out), sections(preset))]
        spiral = REGISTERED["spiral"].load()
        record = _record(spiral, preset, out)
        shown.append((record, tuple(_measured(section, record) for section in spiral.sections[:1])))
    finally:
        torch.set_num_threads(threads)
    intro = "Real digits, held-out test images, the same number of trainings for every method; nothing is downloaded."
    chapters = report.chapters(shown, {})
    html, _ = report.write("mrreg: masks beside SGD and dropout", intro, shown, chapters, out)
    for block in (block for chapter in chapters for block in chapter.blocks):
        print(f"\n{block.title}: {block.center} [{block.unit}], smallest to largest")
        for line in block.lines:
            print(f"  {line.label:24} {line.ours:>14}   {line.spread}")
        for fact in block.facts:
            print(f"  {fact}")
    print(f"\nReport: {html.resolve()}")


def _record(benchmark: Benchmark[Any], preset: str, out: Path) -> Record:
    return records.load(harness.run(benchmark, preset, out, fresh=True).path)


def _measured(section: Section, record: Record) -> Section:
    """The section without the methods that the short form leaves out."""
    return replace(section, rows=tuple(row for row in section.rows if row.values(record)))
