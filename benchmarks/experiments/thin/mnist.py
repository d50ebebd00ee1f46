"""A wide MLP on 1,000 and 5,000 images of MNIST, each seed's own, and with other regularizers beside thin training.

Trials are judged on the last 5,000 training images at the baseline's steps. The preset `demo` has a smaller network on
the digits that come with scikit-learn.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from benchmarks.core.comparison import Job, evenly
from benchmarks.core.training import Batch, Batches, Loop, shuffled
from benchmarks.data import mnist
from benchmarks.experiments.regularizers import BOOST_1, DECAY, DROPOUT, FEW, METHODS, NONE, THIN, Regularizers, Setting
from benchmarks.experiments.thin.mlp import network, shares

ORDER_STREAM = 10_000  # added to a seed, so that the order of the images is not tied to the choice of them
CHUNK = 2500  # images evaluated at once
ALONE = (NONE, DROPOUT, THIN, "thin, k = 10", DECAY, BOOST_1, "thin, k = 10, boost 1", "fresh draw at every step",
         "masks by entry")  # fmt: skip
TOGETHER = (*FEW, f"{THIN}, and weight decay", f"{THIN}, and dropout", "dropout and weight decay")
ALL = 55_000  # training images without those of validation


@dataclass(frozen=True)
class Size:
    """How many images, for how many epochs of plain SGD, and which methods."""

    images: int
    epochs: int
    methods: tuple[str, ...] = ALONE


@dataclass(frozen=True)
class Config:
    """What is spent."""

    seeds: int
    sizes: tuple[Size, ...]
    batch: int = 100
    width: int = 1000
    validation: int = 5000
    timings: int = 15
    points: int = 2
    lr: float = 0.1
    wrong: float = 0.0  # share of wrong labels among those that are trained on
    data: Literal["mnist", "digits"] = "mnist"


DIGITS = {"batch": 25, "validation": 200, "data": "digits"}
PRESETS = {
    "smoke": Config(2, (Size(100, 2, ALONE),), width=16, timings=1, **DIGITS),  # type: ignore[arg-type]
    "cpu": Config(10, (Size(1000, 60), Size(5000, 24, ALONE[:5])), timings=6),
    "gpu": Config(10, (Size(1000, 200), Size(5000, 100), Size(50_000, 50))),
}
DEMO = Config(5, (Size(300, 80, FEW),), width=600, validation=200, timings=3, points=8, lr=0.2, wrong=0.2,
              data="digits")  # fmt: skip
PRESETS["demo"] = DEMO
MORE = {
    "smoke": Config(2, (Size(100, 2, TOGETHER),), width=16, timings=1, **DIGITS),  # type: ignore[arg-type]
    "cpu": Config(5, (Size(1000, 60, TOGETHER), Size(ALL, 4, FEW)), timings=6),
    "gpu": Config(10, (Size(1000, 200, TOGETHER), Size(ALL, 50, FEW))),
}


def settings(config: Config) -> list[Setting]:
    what = mnist.NAMES[config.data]
    found = []
    for size in config.sizes:
        budgets = evenly(size.epochs * -(-size.images // config.batch), config.points)
        task = "" if size.methods == TOGETHER else f"{what}, {size.images:,} images, MLP"
        title = f"Thin MLP on {what}, {size.images:,} training images"
        found.append(Setting(budgets, size.methods, f"{size.images}", size.images, task, title))
    return found


def loop(config: Config, model: nn.Module, optimizer: Optimizer, seed: int, job: Job) -> Loop:
    digits = replace(mnist.load(config.data, job.data_dir).to(job.device), draw=job.setting)
    train, validation = digits.without_last(config.validation), digits.validation(config.validation)
    y = mislabelled(train.y, config.wrong)
    chosen = train.examples(seed).to(job.device)
    batches = Batches(
        shuffled(len(chosen), config.batch),
        lambda index: (train.x[chosen[index]], y[chosen[index]]),
        torch.Generator().manual_seed(ORDER_STREAM + seed),
    )
    return Loop(model, optimizer, batches, {"validation": lambda: parts(validation), "test": lambda: parts(digits)})


def mislabelled(y: Tensor, share: float) -> Tensor:
    """Return labels, a share of which are those of another class, always the same ones."""
    if not share:
        return y
    generator = torch.Generator().manual_seed(0)
    wrong = torch.rand(len(y), generator=generator) < share
    other = torch.randint(1, mnist.CLASSES, (len(y),), generator=generator)
    return (y + (wrong * other).to(y.device)) % mnist.CLASSES


def parts(digits: mnist.Digits) -> Iterator[Batch]:
    yield from digits.held_out(CHUNK)


def pixels(config: Config) -> int:
    return 784 if config.data == "mnist" else 64


PAIRS = [{"p": pair} for pair in ((0.2, 0.5), (0.5, 0.5), (0.7, 0.5))]
TUNED = [name for name in METHODS if name not in (NONE, DECAY)]
STUDY = Regularizers(
    "thin-mnist", PRESETS, settings,
    network=lambda config, method, _: network(method, (pixels(config), config.width, mnist.CLASSES)),
    example=lambda config: torch.rand(2, pixels(config)),
    shares=shares,
    optimizer=lambda config, model, decay: torch.optim.SGD(model.parameters(), config.lr, **decay),
    loop=loop,
    grid={**dict.fromkeys(TUNED, PAIRS), DECAY: [{"weight_decay": each} for each in (1e-3, 3e-3, 1e-2)]},
    note="784-1000-1000-10, batch 100, SGD with lr 0.1 and no momentum. The shares of pixels and hidden units that are "
    "left out, and the weight decay, are chosen among three on 5,000 other training images. Test accuracy is that of "
    "the last step. In the demo: 64-600-600-10, lr 0.2, a fifth of the training labels wrong.",
    data=lambda config: mnist.NAMES[config.data],
    at="steps",
)  # fmt: skip
BENCHMARK = STUDY.benchmark()
BENCHMARK_MORE = replace(STUDY, name="thin-mnist-more", presets=MORE).benchmark()
