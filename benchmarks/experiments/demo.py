"""What `make demo` runs: three comparisons on data that ship with a package, and what came out in three sentences.

One is a preset of the spiral. Another trains the network of `regularizers-digits` on few digits, all of them in each
batch, so that layers are large enough for thin steps to be the cheaper ones. The third fine-tunes with a slow lower
part: a network trained on transposed digits goes on with few upright ones.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import mrreg
from benchmarks.core import records, runner
from benchmarks.core.comparison import Comparison, Costs, Job, Options, Search, evenly
from benchmarks.core.runner import Benchmark
from benchmarks.core.sections import Curves, Shown
from benchmarks.core.study import Study
from benchmarks.core.training import Loop, drawn_batches
from benchmarks.data.mnist import CLASSES, load
from benchmarks.experiments import regularizers, spiral
from benchmarks.experiments.thin import mnist
from benchmarks.experiments.thin.mlp import PAIRS, shares
from benchmarks.report import headlines, pages
from benchmarks.report.headlines import Card, Pair

FULL, MULTIRATE, FROZEN, LAST = "full fine-tuning", "multirate, upper half fast", "lower half frozen", "last layer only"
LAYERS = ("0", "2", "4", "6")
HELD_OUT = 400  # training images on which learning rates are chosen


@dataclass(frozen=True)
class Method:
    """How many of the four layers train at every step; with `k` the others do at every k-th step, else never."""

    fast: int = 4
    k: int | None = None
    lr: float = 0.1


METHODS = {FULL: Method(), MULTIRATE: Method(2, k=5), FROZEN: Method(2), LAST: Method(1)}


@dataclass(frozen=True)
class Config:
    """How much is trained on how much; `seeds` are those of the comparison."""

    seeds: int
    steps: int
    points: int = 12
    images: int = 100
    width: int = 500
    pretraining: int = 300
    lr: tuple[float, ...] = (0.05, 0.1, 0.2)
    timings: int = 5


PRESETS = {"demo": Config(6, 150), "smoke": Config(2, 4, 2, width=16, pretraining=4, timings=1)}


def comparisons(config: Config) -> list[Comparison[Method]]:
    grid = {name: [{"lr": lr} for lr in config.lr] for name in METHODS}
    budgets, costs = evenly(config.steps, config.points), Costs[Method](FULL, config.timings)
    return [Comparison(METHODS, config.seeds, budgets, costs, Search(grid, at="seconds"))]


def build(config: Config, method: Method, seed: int, job: Job) -> Loop:
    """Return the training of a pretrained network on its own draw of upright digits."""
    digits = load("digits", None)
    few = digits.without_last(HELD_OUT).drawn(config.images, torch.Generator().manual_seed(seed))
    held_out = digits.validation(HELD_OUT)
    model = network(config.width)
    model.load_state_dict(pretrained(seed, config.images, config.width, config.pretraining))
    fast = LAYERS[-method.fast :]
    if method.k is None:
        for name in set(LAYERS) - set(fast):
            model.get_submodule(name).requires_grad_(False)
        optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=method.lr)
    else:
        optimizer = mrreg.MultirateSGD(model, lr=method.lr, k=method.k, fast=list(fast))
    splits = {"validation": lambda: held_out.held_out(HELD_OUT), "test": lambda: digits.held_out(1000)}
    return Loop(model, optimizer, drawn_batches(few.x, few.y, 50, torch.Generator().manual_seed(seed)), splits)


def network(width: int) -> nn.Sequential:
    layers = [layer for pair in pairwise((64, width, width, width, CLASSES)) for layer in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


@cache
def pretrained(seed: int, images: int, width: int, steps: int) -> Mapping[str, Tensor]:
    """Return the weights after training on those digits of a seed that it is not fine-tuned on, transposed."""
    digits = load("digits", None).without_last(HELD_OUT)
    rest = torch.randperm(len(digits.y), generator=torch.Generator().manual_seed(seed))[images:]  # none that are drawn
    transposed = digits.x.view(-1, 8, 8).mT.flatten(1)
    torch.manual_seed(seed)
    model = network(width)
    batches = drawn_batches(transposed[rest], digits.y[rest], 50, torch.Generator().manual_seed(seed))
    loop = Loop(model, torch.optim.SGD(model.parameters(), lr=0.2), batches)
    for _ in range(steps):
        loop.step()
    return model.state_dict()


SHOWN = Shown(
    "Fine-tuning: full, multirate, lower half frozen, last layer only", {name: name for name in METHODS},
    [(MULTIRATE, other) for other in (FULL, FROZEN, LAST)], task="transposed to upright digits",
    against=[(MULTIRATE, FULL), (MULTIRATE, FROZEN)],
    note="64-500-500-500-10, trained on transposed digits, then fine-tuned on 100 upright ones, batches of 50, SGD. "
    "Each learning rate is the best of 0.05, 0.1 and 0.2 on validation images.",
)  # fmt: skip
BENCHMARK = Study("demo-finetune", PRESETS, comparisons, build, data="scikit-learn's digits").benchmark(
    SHOWN.sections(FULL)[1:], [SHOWN]
)

THIN, DROPOUT, NONE = "thin, k = 5", "dropout", "none"
WIDE = {
    NONE: regularizers.Method(lr=1e-3),
    DROPOUT: regularizers.Method("dropout", lr=1e-3),
    THIN: regularizers.Method("thin", lr=1e-3),
}
WIDE_PRESETS = {
    "demo": mnist.Config(5, 300, 60, 6, 300, 1000, 200, 3, 0.2, "digits"),
    "smoke": mnist.Config(2, 100, 4, 2, 25, 16, 200, 1, 0.2, "digits"),
}


def wide_comparisons(config: mnist.Config) -> list[Comparison[regularizers.Method]]:
    """Compare with half of the units left out, and a fifth or half of the inputs, whichever is better."""
    grid: dict[str, list[Options]] = {DROPOUT: [{"p": p} for p in PAIRS], THIN: [{"p": shares(*p)} for p in PAIRS]}
    budgets, costs = evenly(config.steps, config.points), Costs[regularizers.Method](NONE, config.timings)
    return [Comparison(WIDE, config.seeds, budgets, costs, Search(grid, at="seconds"))]


WIDE_SHOWN = Shown(
    "Wide MLP on few digits", {name: name for name in WIDE}, [(THIN, DROPOUT), (DROPOUT, NONE)],
    task="300 digits, wide MLP", against=[(THIN, DROPOUT), (THIN, NONE)],
    note="64-1000-1000-10 on 300 digits, a fifth of whose labels are wrong, all in each batch, AdamW. Half of the "
    "hidden units are left out, and a fifth or half of the inputs, whichever is better on 200 other images.",
)  # fmt: skip
WIDE_BENCHMARK = Study(
    "demo-thin", WIDE_PRESETS, wide_comparisons, replace(mnist.STUDY, warm=10).build,
    data="scikit-learn's digits",
).benchmark(WIDE_SHOWN.sections(NONE), [WIDE_SHOWN])  # fmt: skip

ACCURACY, SECONDS = "test accuracy in %", "seconds of training"
SLOW, SGD = "multirate, all biases", "SGD"
CARDS = (
    Card(
        "Thin training", "On k - 1 of k steps a random part of the hidden units is absent and not computed.",
        "You would use dropout and layers are wide.", ("demo-thin",),
        Curves(WIDE_SHOWN.methods, "accuracy by time", SECONDS, ACCURACY,
               "seconds", ylim=(50, 95)),
    ),
    Card(
        "Fine-tuning", "The upper layers move at every step, the lower ones once in k steps, by k times as much.",
        "You would fine-tune everything, seconds are short, and freezing costs accuracy.", ("demo-finetune",),
        Curves(SHOWN.methods, "accuracy by time", SECONDS, ACCURACY, "seconds"),
    ),
    Card(
        "Several time scales", "Any group of parameters gets a period of its own: here all biases move once in five "
        "steps.",
        "Parts of the network want different step sizes and plain SGD stalls.", ("spiral",),
        Curves({SGD: SGD, SLOW: SLOW}, "accuracy by step", "step", ACCURACY, "step", ylim=(45, 95)),
    ),
)  # fmt: skip
INTRO = (
    "Real digits that ship with scikit-learn, held-out test images, as many trials for every method that is tuned; "
    "nothing is downloaded. A fifth of the labels that the wide network trains on are wrong, so that there is "
    "something to regularize."
)


def run(out: Path, preset: str) -> None:
    """Run the demo, write the report, and print what came out."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # more only wait for each other on matrices this small
    shown, shows = [], []
    every: tuple[Benchmark[Any], ...] = (WIDE_BENCHMARK, BENCHMARK, spiral.BENCHMARK)
    try:
        for each in every:
            print(f"{each.name}: {len(each.runs(each.config(preset)))} runs", flush=True)
            record = records.load(runner.run(each, preset, out, fresh=True).path)
            there = [part for part in each.sections if part.presets is None or preset in part.presets]
            shown.append((record, there[:1] if each is spiral.BENCHMARK else there))
            shows.append((record, [part for part in each.shown if part.presets is None or preset in part.presets]))
    finally:
        torch.set_num_threads(threads)
    title = "mrreg: what it gains and costs"
    html, *_ = pages.write(title, INTRO, shown, shows, pages.chapters(shown, {}), out, CARDS)
    print()
    for sentence in sentences(shows):
        print(sentence)
    print(f"Report: {html.resolve()}")


def sentences(shows: headlines.Shows) -> list[str]:
    """Return what came out, in the words of the report; nothing is said of what has fewer than two seeds."""

    def pair(name: str, ours: str, rival: str) -> Pair:
        return next(Pair(record, each[0], ours, rival) for record, each in shows if record.benchmark == name)

    thin, dropout = pair("demo-thin", THIN, DROPOUT), pair("demo-thin", DROPOUT, NONE)
    tuned, frozen = pair("demo-finetune", MULTIRATE, FULL), pair("demo-finetune", MULTIRATE, FROZEN)
    return [
        f"Thin training against dropout on {thin.shown.task}, at equal seconds {thin.seconds}; dropout against none "
        f"{dropout.seconds}; a step takes {thin.cost()[0]} of a plain step's time, one with dropout {thin.cost()[1]}.",
        f"Multirate fine-tuning takes {tuned.cost()[0]} of the time of an epoch of full fine-tuning on upright digits, "
        f"and is at equal epochs {tuned.epochs}; against the lower half frozen {frozen.epochs}.",
        f"Multirate training with slow biases against SGD on the spiral, at equal epochs "
        f"{pair('spiral', SLOW, SGD).epochs}.",
    ]
