"""Masks beside SGD and dropout on real handwritten digits that ship with scikit-learn; nothing is downloaded.

Regularization matters where data are few: 100 training images. Every method is tuned by the same number of trainings on
validation images, then trained anew for each seed (which draws the training images and the weights), and judged on 900
test images that played no part before. The last epoch counts, not the best.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.core import records, stats
from benchmarks.core import runner as harness
from benchmarks.core.records import Record, Result
from benchmarks.core.registry import REGISTERED
from benchmarks.core.runner import Benchmark, Context, Run
from benchmarks.core.sections import Bars, Curves, Row, Section, gain, metric
from benchmarks.report import pages as report
from mrreg import MultirateMask, attach

P_INPUT = 0.2  # as usual, less is dropped from the images than from hidden layers
TEST = 900
TUNING_SEEDS = 1000  # seeds of the search begin here


@dataclass(frozen=True)
class Choice:
    """One candidate of the search: the step size, and the strength of the method."""

    lr: float
    p: float = 0.0
    k: int = 1
    weight_decay: float = 0.0

    def __str__(self) -> str:
        rest = {"p": self.p, "k": self.k if self.k > 1 else 0, "weight decay": self.weight_decay}
        return ", ".join([f"h = {self.lr:g}", *(f"{name} = {value:g}" for name, value in rest.items() if value)])


def _choices(*variants: Callable[[float], Choice]) -> tuple[Choice, ...]:
    return tuple(variant(lr) for lr in (0.2, 0.4, 0.8) for variant in variants)


CHOICES = {
    "SGD": _choices(Choice, partial(Choice, weight_decay=1e-3)),
    "dropout": _choices(partial(Choice, p=0.3), partial(Choice, p=0.5)),
    "masks (weights)": _choices(partial(Choice, p=0.3, k=5), partial(Choice, p=0.5, k=5)),
    "masks (units)": _choices(partial(Choice, p=0.5, k=2), partial(Choice, p=0.5, k=5)),
}
"""The candidates of every method: as many for each."""
PAIRS = [(one, other) for other in ("SGD", "dropout") for one in CHOICES if one not in {"SGD", other}]


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


def runs(config: DemoConfig) -> list[Run]:
    """A search for each method, then every method seed by seed."""
    tuning = tuple(range(TUNING_SEEDS, TUNING_SEEDS + config.tuning_seeds))
    return [
        *(Run(f"search {method}", tuning, method) for method in CHOICES),
        *(Run(method, (seed,), method) for seed in range(config.seeds) for method in CHOICES),
    ]


def execute(config: DemoConfig, run: Run, context: Context) -> list[Result]:
    """Try every candidate on validation images, or train with the best one and look at test images."""
    method: str = run.options
    if run.method == method:
        choice = CHOICES[method][best(context.record, method)]
        return [train(config, method, choice, run.seeds[0])]
    tried = [
        [train(config, method, choice, seed, search=True)["accuracy"] for choice in CHOICES[method]]
        for seed in context.track(run.seeds, run.method)
    ]
    return [{"validation accuracy": accuracies} for accuracies in tried]


def best(record: Record, method: str) -> int:
    """Return the candidate with the best mean validation accuracy; the first of equals."""
    columns = zip(*record.curves(f"search {method}", "validation accuracy").values(), strict=True)
    means = [fmean(column) for column in columns]
    return means.index(max(means))


@cache
def digits() -> tuple[Tensor, Tensor]:
    """The 1,797 images, 8 by 8, between 0 and 1, and their labels, in one fixed random order."""
    bunch = load_digits()
    order = torch.randperm(len(bunch.target), generator=torch.Generator().manual_seed(0))
    return torch.from_numpy(bunch.data).float()[order] / 16, torch.from_numpy(bunch.target).long()[order]


def split(seed: int, images: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the images for training, validation and test; the test images are the same for every seed."""
    x, _ = digits()
    rest = TEST + torch.randperm(len(x) - TEST, generator=torch.Generator().manual_seed(seed))
    return rest[:images], rest[images:], torch.arange(TEST)


def network(method: str, choice: Choice, width: int) -> nn.Sequential:
    """64 - width - width - 10, regularized at the input of every layer."""
    sizes = [(64, width, P_INPUT), (width, width, choice.p), (width, 10, choice.p)]
    layers: list[nn.Module] = []
    for inputs, outputs, p in sizes:
        linear = nn.Linear(inputs, outputs)
        match method:
            case "dropout":
                layers += [nn.Dropout(p), linear]
            case "masks (weights)":
                layers.append(MultirateMask(linear, p, choice.k, rescale=True))
            case "masks (units)":
                layers.append(MultirateMask(linear, p, choice.k, structure="input", rescale=True))
            case _:
                layers.append(linear)
        layers.append(nn.ReLU())
    return nn.Sequential(*layers[:-1])


def train(
    config: DemoConfig, method: str, choice: Choice, seed: int, *, search: bool = False
) -> dict[str, float | list[float]]:
    """One training with a step size that falls to zero; only training counts as seconds."""
    x, y = digits()
    training, validation, test = split(seed, config.images)
    judged = validation if search else test
    torch.manual_seed(seed)
    model = network(method, choice, config.width)
    optimizer = torch.optim.SGD(model.parameters(), lr=choice.lr, weight_decay=choice.weight_decay)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, config.epochs)
    if method.startswith("masks"):
        attach(optimizer, model, seed=seed)
    accuracies, seconds, total = [], [], 0.0
    for epoch in range(1, config.epochs + 1):
        start = time.perf_counter()
        shuffled = training[torch.randperm(len(training))]
        for batch in (shuffled[first : first + config.batch] for first in range(0, len(shuffled), config.batch)):
            F.cross_entropy(model(x[batch]), y[batch]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
        schedule.step()
        total += time.perf_counter() - start
        if epoch % config.every == 0:
            accuracies.append(accuracy(model, x[judged], y[judged]))
            seconds.append(total)
    return {
        "accuracy": accuracies[-1],
        "seconds": total,
        "accuracy per look": accuracies,
        "epoch per look": [float(epoch) for epoch in range(config.every, config.epochs + 1, config.every)],
        "seconds per look": seconds,
    }


def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Per cent of the images that a model in evaluation mode gets right."""
    model.eval()
    with torch.no_grad():
        right = int((model(x).argmax(1) == y).sum())
    model.train()
    return 100 * right / len(y)


def sections(preset: str) -> tuple[Section, ...]:
    """Return the report: accuracy with paired differences, and its cost."""
    config = PRESETS[preset]
    note = (
        f"scikit-learn's digits: {config.images} images to train on, {TEST} to test on, the rest for validation. "
        f"Network 64 - {config.width} - {config.width} - 10, batches of {config.batch}, {config.epochs} epochs, step "
        f"size falling to zero; {len(CHOICES['SGD'])} settings of every method tried {config.tuning_seeds} times each "
        "on validation images. Accuracy after the last epoch; each seed draws other training images, the same for all."
    )
    names = {method: method for method in CHOICES}

    def curves(x: str, xlabel: str) -> Curves:
        return Curves(names, "accuracy per look", xlabel, "test accuracy [%]", x=x, ylim=(70, 95))

    return (
        Section(
            "",
            f"Digits from {config.images} training images",
            "%",
            rows=tuple(Row(method, metric(method, "accuracy")) for method in CHOICES),
            plots=(Bars("test accuracy [%]"), curves("epoch per look", "epoch")),
            note=note,
            facts=chosen,
        ),
        Section(
            "",
            "Better than SGD, better than dropout? Differences paired by seed",
            "points",
            rows=tuple(Row(f"{one} - {other}", gain(one, other, "accuracy")) for one, other in PAIRS),
            plots=(Bars("difference of test accuracy [points]"),),
            note="Within noise: the 95 % t-interval of the differences contains zero.",
            facts=differences,
        ),
        Section(
            "",
            "Seconds of one training",
            "s",
            center="median",
            rows=tuple(Row(method, metric(method, "seconds")) for method in CHOICES),
            plots=(curves("seconds per look", "seconds"),),
            note=(
                "The network is so small that Python's overhead decides. What masks cost or save on larger ones: "
                "python -m benchmarks speed masks"
            ),
        ),
    )


def chosen(record: Record) -> list[str]:
    """Return the choices of the search."""
    choices = [f"{method}: {CHOICES[method][best(record, method)]}" for method in CHOICES]
    return [f"Chosen on validation images: {'; '.join(choices)}."]


def differences(record: Record) -> list[str]:
    """Every comparison with SGD and with dropout in words."""
    accuracies = {method: record.numbers(method, "accuracy") for method in CHOICES}
    return [
        stats.sentence(one, other, stats.paired(accuracies[one], accuracies[other]), "points") for one, other in PAIRS
    ]


BENCHMARK = Benchmark("demo", PRESETS, runs, execute, data="scikit-learn's digits")


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
