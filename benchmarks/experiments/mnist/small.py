"""Regularization where it is needed: 1,000 and 5,000 training images, every method's p tuned on a validation split.

Goes beyond the paper. Each method gets the same number of trials for its p, judged on the last 5,000 training images;
test images are seen by the chosen p alone. Methods are compared at equal epochs, and at equal seconds: a method whose
steps are cheaper than plain ones is trained for more of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, get_args

from benchmarks.core import stats
from benchmarks.core.comparison import Comparison, Costs, Job, Options, Outcome, Search, evenly
from benchmarks.core.records import Record, Result
from benchmarks.core.sections import Curves, Section, gain
from benchmarks.core.study import Study
from benchmarks.core.study_sections import Shown
from benchmarks.data import mnist as mnist_data
from benchmarks.experiments.mnist.training import CHUNK, Method, Setting, Structure, Training, begin

PAIRS = ((0.2, 0.5), (0.5, 0.5), (0.7, 0.5))
SINGLES = tuple((0.0, p) for p in (0.3, 0.5, 0.7))  # where only hidden units are left out


def masks(structure: Structure, k: int, *, rescale: bool) -> str:
    """Return the name of a kind of masks."""
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
PICKED = (masks("hidden", 5, rescale=True), masks("input", 5, rescale=True))  # before anything was run
EPOCHS, SECONDS = "accuracy", "accuracy at equal seconds"


@dataclass(frozen=True)
class Size:
    """A number of images, epochs of plain SGD on them, and the methods that are compared."""

    images: int
    epochs: int
    methods: tuple[str, ...]


@dataclass(frozen=True)
class SmallConfig:
    """The effort for tuning and for the comparison; `seeds` are those of the comparison."""

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


def search(images: int, methods: Sequence[str], trials: int, seeds: int = 1) -> Search:
    """Return as many values of p for every method; SGD has none."""

    def grid(method: Method) -> Sequence[Options]:
        return [{"p": p} for p in (SINGLES if method.structure in ("hidden", "output") else PAIRS)[:trials]]

    def trial(name: str, options: Options) -> str:
        return f"tuning {images}: {name}, p = {options['p'][0]:g}/{options['p'][1]:g}"

    return Search({name: grid(METHODS[name]) for name in methods if name != "SGD"}, trial=trial, seeds=seeds)


def comparisons(config: SmallConfig) -> list[Comparison[Method]]:
    """Return one comparison for each number of images."""
    return [
        Comparison(
            {name: METHODS[name] for name in size.methods},
            config.seeds,
            evenly(size.epochs * -(-size.images // config.batch), points=8),
            Costs("SGD", config.timings, name=f"cost {size.images}"),
            search(size.images, size.methods, config.trials, config.tuning_seeds),
            setting=size.images,
            prefix=f"{size.images}: ",
        )
        for size in config.sizes
    ]


def build(config: SmallConfig, method: Method, seed: int, job: Job) -> Training:
    """Return the training of one network on its own draw of the images."""
    digits = replace(mnist_data.load(config.data, job.data_dir).to(job.device), draw=job.setting)
    loop = begin(method, Setting(config.batch, config.width), digits.without_last(config.validation), [seed])
    validation = digits.validation(config.validation)
    return replace(loop, splits={**loop.splits, "validation": partial(validation.held_out, CHUNK)})


def result(config: SmallConfig, outcome: Outcome[Method]) -> Result:
    """Return accuracy after as many epochs, and after as many seconds, as plain SGD has."""
    if outcome.what == "trial":
        return {"validation accuracy": outcome.last()}
    per_epoch = -(-outcome.setting // config.batch)
    p = outcome.options.get("p", (0.0, 0.0))
    return {
        EPOCHS: outcome.at_steps()[-1],
        SECONDS: outcome.at_seconds()[-1],
        "epochs at equal seconds": outcome.equal[-1] / per_epoch,
        "relative cost": outcome.relative,
        "training seconds": outcome.by_seconds.seconds,
        "p input": p[0],
        "p hidden": p[1],
        "accuracy per evaluation": outcome.at_seconds(),
        "epoch per evaluation": [steps / per_epoch for steps in outcome.equal],
        "plain epochs per evaluation": [steps / per_epoch for steps in outcome.budgets],
    }


STUDY = Study(
    "mnist-small", PRESETS, comparisons, build, result=result,
    data=lambda config: mnist_data.NAMES[config.data],
)  # fmt: skip

NOTE = (
    "784-800-10, batch 50, h = 0.1, momentum 0; every seed draws its own training images. p is chosen among as many "
    "values for each method, by accuracy on 5,000 other training images; test accuracy is that of the last epoch. "
    "There are many kinds of masks and one dropout: that the best of many rows is above dropout's says little, so the "
    "claims are about two kinds that were named beforehand."
)
AT_SECONDS = (
    " Equal seconds are those that plain SGD needs for its epochs, from the cost of a step measured with all methods "
    "in turns in one process."
)


def sections(images: int, methods: Sequence[str], presets: frozenset[str]) -> tuple[Section, ...]:
    """Return the comparison at equal epochs and at equal seconds, and the cost of a step."""
    shown = Shown(
        f"MNIST, {images:,} training images",
        {each: f"{images}: {each}" for each in methods},
        [(ours, theirs) for ours in PICKED for theirs in ("SGD", "dropout")],
        words="more accurate than",
        note=NOTE,
        presets=presets,
        ylabel="test accuracy in %",
    )
    curves = Curves(
        {each: shown.methods[each] for each in FEW}, "accuracy per evaluation",
        "training time in epochs of plain SGD", shown.ylabel, x="plain epochs per evaluation",
    )  # fmt: skip
    epochs, seconds = (replace(shown, facts=partial(facts, shown, images, name)) for name in (EPOCHS, SECONDS))
    return (
        epochs.section("equal epochs", EPOCHS),
        seconds.section("equal seconds", SECONDS, curves, AT_SECONDS),
        shown.costs(
            "seconds of a training step, plain SGD = 1",
            "With the p that was chosen. Masks by unit compute only the kept units in k - 1 of k steps.",
        ),
    )


def facts(shown: Shown, images: int, name: str, record: Record) -> list[str]:
    """Return the p of each method, and how the masks that do best on the validation split do on the test images."""
    tuned = search(images, list(shown.methods), record.config["trials"])
    done = [each for each in shown.methods if record.results(shown.methods[each])]
    best = {each: max(score for _, score in tried) for each in done if (tried := tuned.tried(record, each))}
    masked = [each for each in best if METHODS[each].kind == "masks"]
    if not masked or "dropout" not in best:
        return []
    picked = {each: tuned.chosen(record, each).get("p", (0.0, 0.0)) for each in done}
    top = max(masked, key=best.__getitem__)
    margin = stats.summarize(gain(shown.methods[top], shown.methods["dropout"], name)(record))
    return [
        "Chosen p (input/hidden): " + "; ".join(f"{each} {p[0]:g}/{p[1]:g}" for each, p in picked.items()) + ".",
        f"Of all masks, {top} does best on the validation split ({best[top]:.2f} %, dropout {best['dropout']:.2f} %). "
        f"On the test images it is {margin.mean:+.2f} +- {margin.half:.2f} points from dropout (95 % interval).",
    ]


SECTIONS = tuple(
    section
    for names in (("cpu",), ("gpu", "paper"))
    for size in PRESETS[names[0]].sizes
    for section in sections(size.images, size.methods, frozenset(names))
)
BENCHMARK = STUDY.benchmark(SECTIONS)
