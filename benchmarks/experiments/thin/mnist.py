"""A wide MLP on 1,000 and 5,000 images of MNIST: thin sub-networks, dropout, weight decay, everyone tuned.

Goes beyond the paper. Every method gets as many trials, judged on the last 5,000 training images at the baseline's
steps; each seed of the comparison draws its own training images and weights.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch

import mrreg
from benchmarks.core.comparison import Comparison, Costs, Job, Options, Search, evenly
from benchmarks.core.sections import Section
from benchmarks.core.study import Study
from benchmarks.core.study_sections import Shown, study_sections
from benchmarks.core.training import Batch, Batches, Loop, shuffled
from benchmarks.data import mnist
from benchmarks.experiments.thin.mlp import Method, network

ORDER_STREAM = 10_000  # added to a seed, so that the order of the images is not tied to the choice of them
CHUNK = 2500  # images evaluated at once


METHODS = {
    "none": Method(),
    "dropout": Method("dropout"),
    "thin, k = 5": Method("thin"),
    "thin, k = 10": Method("thin", k=10),
    "weight decay": Method(),
    "thin, k = 5, boost 1": Method("thin", boost=1.0),
    "thin, k = 10, boost 1": Method("thin", k=10, boost=1.0),
    "fresh draw at every step": Method("fresh"),
    "masks by entry": Method("entries"),
}
ALONE = tuple(METHODS)
FEW = ALONE[:5]
METHODS |= {
    "thin, k = 5, and weight decay": Method("thin", weight_decay=1e-3),
    "thin, k = 5, and dropout": Method("thin", beside=0.2),
    "dropout and weight decay": Method("dropout", weight_decay=1e-3),
}
PAIRS = ((0.2, 0.5), (0.5, 0.5), (0.7, 0.5))
DECAY = (1e-3, 3e-3, 1e-2)


@dataclass(frozen=True)
class Size:
    """How many images, for how many epochs of plain SGD, and which methods."""

    images: int
    epochs: int
    methods: tuple[str, ...] = ALONE


@dataclass(frozen=True)
class Config:
    """What is spent; `trials` are those of each method."""

    seeds: int
    sizes: tuple[Size, ...]
    trials: int = len(PAIRS)
    batch: int = 100
    width: int = 1000
    validation: int = 5000
    timings: int = 15
    data: Literal["mnist", "digits"] = "mnist"


PRESETS = {
    "smoke": Config(2, (Size(100, 2),), 1, batch=25, width=16, validation=200, timings=1, data="digits"),
    "cpu": Config(10, (Size(1000, 60), Size(5000, 24, FEW)), timings=6),
    "gpu": Config(10, (Size(1000, 200), Size(5000, 100), Size(50_000, 50))),
}


def comparisons(config: Config) -> list[Comparison[Method]]:
    """Return one comparison for each number of images."""

    def search(size: Size) -> Search:
        decayed, dropped = ([{name: each} for each in grid] for name, grid in (("weight_decay", DECAY), ("p", PAIRS)))
        grids = {name: decayed if METHODS[name].kind == "none" else dropped for name in size.methods if name != "none"}
        return Search(
            {name: grid[: config.trials] for name, grid in grids.items()},
            trial=lambda name, options: f"search {size.images}: {name}, {said(options)}",
        )

    return [
        Comparison(
            {name: METHODS[name] for name in size.methods},
            config.seeds,
            evenly(size.epochs * -(-size.images // config.batch), points=2),
            Costs("none", config.timings, name=f"costs {size.images}"),
            search(size),
            setting=size.images,
            prefix=f"{size.images}: ",
        )
        for size in config.sizes
    ]


def said(options: Options) -> str:
    """Return the options of a trial in words."""
    return ", ".join(
        f"{name} = {'/'.join(f'{each:g}' for each in value) if isinstance(value, tuple) else f'{value:g}'}"
        for name, value in options.items()
    )


def build(config: Config, method: Method, seed: int, job: Job) -> Loop:
    """Return the training of a method on a seed's own draw of the images."""
    digits = replace(mnist.load(config.data, job.data_dir).to(job.device), draw=job.setting)
    train, validation = digits.without_last(config.validation), digits.validation(config.validation)
    torch.manual_seed(seed)
    model = network(method, (digits.x.shape[1], config.width, mnist.CLASSES)).to(job.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=method.weight_decay)
    if method.kind in ("thin", "entries"):
        mrreg.attach(optimizer, model, seed=seed)
    torch.manual_seed(seed)  # dropout draws from the global generator
    chosen = train.examples(seed).to(job.device)
    batches = Batches(
        shuffled(len(chosen), config.batch),
        lambda index: (train.x[chosen[index]], train.y[chosen[index]]),
        torch.Generator().manual_seed(ORDER_STREAM + seed),
    )
    return Loop(model, optimizer, batches, {"validation": lambda: parts(validation), "test": lambda: parts(digits)})


def parts(digits: mnist.Digits) -> Iterator[Batch]:
    """Yield the images to evaluate on, some at a time."""
    yield from zip(digits.test_x.split(CHUNK), digits.test_y.split(CHUNK), strict=True)  # type: ignore[no-untyped-call]


def sections(size: Size, presets: frozenset[str]) -> tuple[Section, ...]:
    """Return what is shown of one number of images."""
    ours = [name for name in size.methods if name.startswith("thin")]
    both = [name for name in ours if ", and " in name]
    others = [name for name in ("none", "weight decay", "fresh draw at every step") if name in size.methods]
    shown = Shown(
        f"Thin MLP on MNIST, {size.images:,} training images",
        {name: f"{size.images}: {name}" for name in size.methods},
        [
            *((name, "dropout") for name in ours),
            *((name, "thin, k = 5") for name in both),
            *(("thin, k = 5", other) for other in others),
            ("dropout", "none"),
        ],
        words="more accurate than",
        note="784-1000-1000-10, batch 100, SGD with lr 0.1 and no momentum. The shares of pixels and hidden units that "
        "are left out, and the weight decay, are chosen among three on 5,000 other training images. Test accuracy is "
        "that of the last step.",
        presets=presets,
    )
    return study_sections(shown, baseline="none")


STUDY = Study("thin-mnist", PRESETS, comparisons, build, data=lambda config: mnist.NAMES[config.data])
BENCHMARK = STUDY.benchmark(
    [
        part
        for preset in ("cpu", "gpu")
        for size in PRESETS[preset].sizes
        for part in sections(size, frozenset({preset}))
    ]
)
