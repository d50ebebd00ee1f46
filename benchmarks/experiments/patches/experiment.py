"""Two learning rates at once on patch-augmented CIFAR-10 (the paper's figure 2).

A small step size learns the patch, a large one the images; the paper merges two copies of a WideResNet-16 that learn on
two time scales. `data` says what the images are, `model` what is merged and when.

Differs from the paper: it gives neither batch size (128), epochs (60), width factor (10) nor weight decay (5e-4); those
are of the published code of Li et al. (cwein3/large-lr-code), which it follows. `cpu` is a small network on the middle
16 x 16 pixels of a part of the images. Step sizes stay as they are to the end. Averaged weights do not fit any running
statistics, so those of batch normalization are taken anew from training images at each evaluation, for every method.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from torch.optim.swa_utils import update_bn

from benchmarks.core.comparison import Comparison, Job
from benchmarks.core.sections import Claim, Curves, Row, Section, gain, metric
from benchmarks.core.study import Study, late
from benchmarks.core.training import Batch, Batches, Loop, shuffled
from benchmarks.data.cifar import cifar10
from benchmarks.experiments.patches.data import SETS, SIDE, Patched, Patterns, evaluation_sets, training_set
from benchmarks.experiments.patches.model import Copies, optimizer, sum_of_losses, wide_resnet

FAST, SLOW, K = 0.004, 0.1, 25  # h_F, h_S = k h_F, k
MOMENTUM, WEIGHT_DECAY = 0.9, 5e-4
CHUNK = 500  # images evaluated at once

SMALL, LARGE, MERGED = "SGD, h = 0.004", "SGD, h = 0.1", "multirate"


@dataclass(frozen=True)
class Method:
    """One network with a step size, or two copies of it that are merged."""

    lr: float  # of the network, or of the fast copy
    merged: bool = False  # with a slow copy, into which it is merged every K steps


METHODS = {SMALL: Method(FAST), LARGE: Method(SLOW), MERGED: Method(FAST, merged=True)}


@dataclass(frozen=True)
class PatchesConfig:
    """The network, how many images, how long.

    `steps` are mini-batches, evaluated after each `every`, a multiple of k so that the copies have just been merged;
    `fitted` is how many training images give the statistics of batch normalization.
    """

    seeds: int
    steps: int
    every: int
    depth: int
    width: int
    batch: int = 128
    side: int = SIDE  # pixels, of the middle of the images
    images: int | None = None  # all
    test_images: int | None = None
    fitted: int = 2_000
    bfloat16: bool = False


PRESETS = {
    "smoke": PatchesConfig(
        seeds=2, steps=50, every=25, depth=10, width=1, batch=8, side=16, images=100, test_images=100, fitted=50
    ),
    "cpu": PatchesConfig(
        seeds=3, steps=12_000, every=1_000, depth=10, width=1, batch=32, side=16, images=10_000, test_images=1_000,
    ),
    "gpu": PatchesConfig(seeds=3, steps=6_000, every=500, depth=16, width=4, bfloat16=True),
    "paper": PatchesConfig(seeds=3, steps=23_450, every=350, depth=16, width=10),
}  # fmt: skip


def comparisons(config: PatchesConfig) -> list[Comparison[Method]]:
    """Return all methods, evaluated on all three kinds of images."""
    budgets = tuple(range(config.every, config.steps + 1, config.every))
    return [Comparison(METHODS, config.seeds, budgets, splits=SETS)]


def build(config: PatchesConfig, method: Method, seed: int, job: Job) -> Loop:
    """Return the training of a network; all methods of a seed see the same patches, initial weights and order."""
    data = cifar10(job.data_dir, config.images, config.test_images)
    generator = torch.Generator().manual_seed(seed)
    patterns = Patterns.draw(generator)
    train = training_set(data, patterns, generator, config.side).to(job.device)
    tests = evaluation_sets(data, patterns, generator, config.side)
    torch.manual_seed(seed)
    net: nn.Module = wide_resnet(config.depth, config.width).to(memory_format=torch.channels_last).to(job.device)
    forward = partial(torch.autocast, job.device.type, torch.bfloat16, enabled=config.bfloat16)
    batches = Batches(shuffled(len(train.y), config.batch, short=False), train.batch, generator)
    splits: dict[str, Callable[[], Iterable[Batch]]] = {
        name: partial(held_out, each.to(job.device)) for name, each in tests.items()
    }
    copies = Copies(net, K) if method.merged else None
    trained = copies.net if copies else net
    splits[SETS[0]] = partial(fitted, trained, train, config.fitted, splits[SETS[0]])  # the first one evaluated
    if copies is None:
        sgd = torch.optim.SGD(net.parameters(), lr=method.lr, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)
        return Loop(net, sgd, batches, splits, forward=forward)
    both = optimizer(copies, method.lr, MOMENTUM, WEIGHT_DECAY)
    return Loop(copies, both, batches, splits, loss=sum_of_losses, after=copies.after_step, forward=forward)


def fitted(net: nn.Module, train: Patched, count: int, batches: Callable[[], Iterable[Batch]]) -> Iterable[Batch]:
    """Return test images, after the statistics of batch normalization are taken from the first training images."""
    index = torch.arange(min(count, len(train.y)))
    update_bn([train.batch(part)[0] for part in torch.split(index, CHUNK)], net)
    return batches()


def held_out(test: Patched) -> Iterator[Batch]:
    for index in torch.split(torch.arange(len(test.y)), CHUNK):
        yield test.batch(index)


def _claim(name: str, one: str, other: str, by: int = 0) -> Claim:
    text = f"no worse than {other} by more than {by} point" if by else f"better than {other}"
    return Claim(f"{name}: {one} {text}", gain(one, other, f"{name} accuracy"), above=-by)


NOTE = (
    "Accuracy on test images: clean, all with a patch, or only the patch; mean of the last quarter of the evaluations. "
    'What the paper averages and merges "every k steps" is read as two copies of the network, one with a step of 0.004 '
    "at every step, the other with 0.1 along one gradient every 25 steps; both become their mean after 25 steps. "
    "The patch is added to the image. Width factor, batch size, epochs, weight decay are not given "
    "by the paper; batch normalization's statistics are taken anew from training images at each evaluation, for every "
    "method."
)


SECTION = Section(
    "Figure 2", "Two learning rates at once on patch-augmented CIFAR-10", "%", 1,
    rows=tuple(Row(f"{name}: {method}", metric(method, f"{name} accuracy")) for name in SETS for method in METHODS),
    claims=(
        _claim("patch only", SMALL, LARGE), _claim("clean", LARGE, SMALL),
        _claim("patch only", MERGED, LARGE), _claim("clean", MERGED, SMALL),
        _claim("patch only", MERGED, SMALL, by=1), _claim("clean", MERGED, LARGE, by=1),
    ),
    plots=tuple(
        Curves({m: m for m in METHODS}, f"{name} accuracy by step", "step", f"test accuracy, {name} [%]", x="step")
        for name in SETS
    ),
    full=frozenset({"paper"}), note=NOTE,
)  # fmt: skip
STUDY = Study("patches", PRESETS, comparisons, build, summary=late, data="images of CIFAR-10 with patches")
BENCHMARK = STUDY.benchmark([SECTION])
