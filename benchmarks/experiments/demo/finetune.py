"""Fine-tuning with a slow lower part: a network trained on transposed digits goes on with few upright ones."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import torch
from torch import Tensor, nn

import mrreg
from benchmarks.core.comparison import Comparison, Costs, Job, Search, evenly
from benchmarks.core.study import Study
from benchmarks.core.study_sections import Shown
from benchmarks.core.training import Batch, Batches, Loop, shuffled
from benchmarks.experiments.demo.images import CLASSES, PIXELS, digits, split, splits

FULL, MULTIRATE, FROZEN, LAST = "full fine-tuning", "multirate fine-tuning", "lower half frozen", "last layer only"
LAYERS = ("0", "2", "4", "6")


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
    """Return the comparison; every method has its learning rate chosen among as many."""
    grid = {name: [{"lr": lr} for lr in config.lr] for name in METHODS}
    return [
        Comparison(
            METHODS,
            config.seeds,
            evenly(config.steps, config.points),
            Costs(FULL, config.timings),
            Search(grid, at="seconds"),
        )
    ]


def build(config: Config, method: Method, seed: int, job: Job) -> Loop:
    """Return the training of a pretrained network on its own draw of upright digits."""
    x, y = digits()
    chosen, *_ = split(seed, config.images)
    model = network(config.width)
    model.load_state_dict(pretrained(seed, config.images, config.width, config.pretraining))
    batches = _batches(x[chosen], y[chosen], seed)
    return Loop(model, _optimizer(model, method), batches, splits(seed, config.images))


def _optimizer(model: nn.Module, method: Method) -> torch.optim.Optimizer:
    fast = LAYERS[-method.fast :]
    if method.k is not None:
        return mrreg.MultirateSGD(mrreg.split(model, fast=fast), lr=method.lr, k=method.k, model=model)
    for name in set(LAYERS) - set(fast):
        model.get_submodule(name).requires_grad_(False)
    return torch.optim.SGD(model.parameters(), lr=method.lr)


def _batches(x: Tensor, y: Tensor, seed: int) -> Batches:
    def take(index: Tensor) -> Batch:
        return x[index], y[index]

    return Batches(shuffled(len(y), 50, short=False), take, torch.Generator().manual_seed(seed))


def network(width: int) -> nn.Sequential:
    """Return three hidden layers."""
    sizes = (PIXELS, width, width, width, CLASSES)
    layers = [layer for pair in pairwise(sizes) for layer in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


@cache
def pretrained(seed: int, images: int, width: int, steps: int) -> Mapping[str, Tensor]:
    """Return the weights after training on those digits of a seed that it is not fine-tuned on, transposed."""
    x, y = digits()
    _, others, _ = split(seed, images)
    torch.manual_seed(seed)
    model = network(width)
    transposed = x[others].view(-1, 8, 8).mT.flatten(1)
    loop = Loop(model, torch.optim.SGD(model.parameters(), lr=0.2), _batches(transposed, y[others], seed))
    for _ in range(steps):
        loop.step()
    return model.state_dict()


SHOWN = Shown(
    "Fine-tuning: full, multirate, lower half frozen, last layer only",
    {name: name for name in METHODS},
    [(MULTIRATE, other) for other in (FULL, FROZEN, LAST)],
    words="more accurate than",
    note="64-500-500-500-10, trained on transposed digits, then fine-tuned on 100 upright ones, batches of 50, SGD. "
    "Each learning rate is the best of 0.05, 0.1 and 0.2 on validation images. 900 test images.",
)
STUDY = Study("demo-finetune", PRESETS, comparisons, build, data="scikit-learn's digits")
