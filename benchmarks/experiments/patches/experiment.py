"""Two learning rates at once on patch-augmented CIFAR-10 (the paper's figure 2).

A small step size learns the patch, a large one the images; the paper merges two copies of a WideResNet-16 that learn on
two time scales. `patches_data` says what the images are, `patches_model` what is merged and when.

Differs from the paper: it gives neither batch size (128), epochs (60), width factor (10) nor weight decay (5e-4); those
are of the published code of Li et al. (cwein3/large-lr-code), which it follows. `cpu` is a small network on the middle
16 x 16 pixels of a part of the images. Step sizes stay as they are to the end. Averaged weights do not fit any running
statistics, so those of batch normalization are taken anew from training images at each evaluation, for every method.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

from benchmarks.core.records import Result
from benchmarks.core.runner import Benchmark, Context, Run
from benchmarks.core.sections import Claim, Curves, Row, Section, gain, metric
from benchmarks.data.cifar import cifar10
from benchmarks.experiments.patches.data import SETS, SIDE, Patched, Patterns, evaluation_sets, training_set
from benchmarks.experiments.patches.model import Composite, Single, wide_resnet

FAST, SLOW, K = 0.004, 0.1, 25  # h_F, h_S = k h_F, k
MOMENTUM, WEIGHT_DECAY = 0.9, 5e-4
CHUNK = 500  # images evaluated at once

SMALL, LARGE, MERGED = "SGD, h = 0.004", "SGD, h = 0.1", "multirate"
BOTH = "merged, both copies at every step"
METHODS: dict[str, Callable[[nn.Module], Single | Composite]] = {
    SMALL: lambda net: Single(net, FAST, MOMENTUM, WEIGHT_DECAY),
    LARGE: lambda net: Single(net, SLOW, MOMENTUM, WEIGHT_DECAY),
    MERGED: lambda net: Composite(net, FAST, K, MOMENTUM, WEIGHT_DECAY),
    BOTH: lambda net: Composite(net, FAST, K, MOMENTUM, WEIGHT_DECAY, each_step=True),
}


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
    methods: tuple[str, ...] = tuple(METHODS)
    bfloat16: bool = False


PRESETS = {
    "smoke": PatchesConfig(
        seeds=2, steps=50, every=25, depth=10, width=1, batch=8, side=16, images=100, test_images=100, fitted=50
    ),
    "cpu": PatchesConfig(
        seeds=3,
        steps=12_000,
        every=1_000,
        depth=10,
        width=1,
        batch=32,
        side=16,
        images=10_000,
        test_images=1_000,
        methods=(SMALL, LARGE, MERGED),
    ),
    "gpu": PatchesConfig(seeds=3, steps=6_000, every=500, depth=16, width=4, bfloat16=True),
    "paper": PatchesConfig(seeds=3, steps=23_450, every=350, depth=16, width=10),
}


def execute(config: PatchesConfig, run: Run, context: Context) -> list[Result]:
    """Train one network; all methods of a seed see the same patches, initial weights and order."""
    (seed,) = run.seeds
    data = cifar10(context.data_dir, config.images, config.test_images)
    generator = torch.Generator().manual_seed(seed)
    patterns = Patterns.draw(generator)
    train = training_set(data, patterns, generator, config.side).to(context.device)
    tests = {
        name: each.to(context.device) for name, each in evaluation_sets(data, patterns, generator, config.side).items()
    }
    torch.manual_seed(seed)
    net = wide_resnet(config.depth, config.width)
    trainer = METHODS[run.method](net.to(memory_format=torch.channels_last).to(context.device))
    curves: dict[str, list[float]] = {name: [] for name in SETS}
    order = batches(len(train.y), config.batch, generator)
    for step in context.track(range(1, config.steps + 1), run.key):
        x, y = train.batch(next(order))
        with torch.autocast(context.device.type, torch.bfloat16, enabled=config.bfloat16):
            loss = trainer.loss(x, y)
        trainer.step(loss)
        if step % config.every == 0:
            fit_statistics(net, train, config.fitted)
            for name, test in tests.items():
                curves[name].append(accuracy(net, test))
    return [_result(config, curves, len(train.y))]


def batches(count: int, batch: int, generator: torch.Generator) -> Iterator[Tensor]:
    """The indices of `count` images in mini-batches, for ever, each epoch in a new order; none is short."""
    while True:
        parts = torch.randperm(count, generator=generator).split(batch)  # type: ignore[no-untyped-call]
        yield from (part for part in parts if len(part) == batch)


def fit_statistics(net: nn.Module, train: Patched, count: int) -> None:
    """Take the statistics of all batch normalization from the first `count` training images."""
    index = torch.arange(min(count, len(train.y))).split(CHUNK)  # type: ignore[no-untyped-call]
    update_bn([train.batch(part)[0] for part in index], net)


@torch.no_grad()
def accuracy(net: nn.Module, test: Patched) -> float:
    """Percent of images named rightly, in evaluation mode."""
    net.eval()
    right = 0
    for index in torch.arange(len(test.y)).split(CHUNK):  # type: ignore[no-untyped-call]
        x, y = test.batch(index)
        right += int((net(x).argmax(1) == y).sum())
    net.train()
    return 100 * right / len(test.y)


def _result(config: PatchesConfig, curves: dict[str, list[float]], images: int) -> Result:
    """Accuracy on each set: the mean of the last quarter of the evaluations, and all of them by epoch."""
    late = {name: fmean(curve[3 * len(curve) // 4 :]) for name, curve in curves.items()}
    epochs = [step * config.batch / images for step in range(config.every, config.steps + 1, config.every)]
    return late | {f"{name} per evaluation": curve for name, curve in curves.items()} | {"epoch": epochs}


def runs(config: PatchesConfig) -> list[Run]:
    return [Run(method, (seed,)) for seed in range(config.seeds) for method in config.methods]


def _as_good(one: str, other: str, name: str, by: float) -> Claim:
    return Claim(f"{name}: {one} no worse than {other} by more than {by:g} point", gain(one, other, name), above=-by)


NOTE = (
    "Accuracy on test images: clean, all with a patch, or only the patch; mean of the last quarter of the evaluations. "
    'What the paper averages and merges "every k steps" is read as two copies of the network, one with a step of 0.004 '
    "at every step, the other with 0.1 along one gradient every 25 steps; both become their mean after 25 steps. "
    'In "merged, both copies at every step" the second one takes its step of 0.1 at every step too, which costs two '
    "gradients a step. The patch is added to the image. Width factor, batch size, epochs, weight decay are not given "
    "by the paper; batch normalization's statistics are taken anew from training images at each evaluation, for every "
    "method."
)


def _section(preset: str, presets: frozenset[str]) -> Section:
    """Figure 2 with the methods of a preset."""
    methods = PRESETS[preset].methods
    return Section(
        "Figure 2",
        "Two learning rates at once on patch-augmented CIFAR-10",
        "%",
        1,
        rows=tuple(Row(f"{name}: {method}", metric(method, name)) for name in SETS for method in methods),
        claims=(
            Claim(f"patch only: {SMALL} better than {LARGE}", gain(SMALL, LARGE, "patch only")),
            Claim(f"clean: {LARGE} better than {SMALL}", gain(LARGE, SMALL, "clean")),
            Claim(f"patch only: {MERGED} better than {LARGE}", gain(MERGED, LARGE, "patch only")),
            Claim(f"clean: {MERGED} better than {SMALL}", gain(MERGED, SMALL, "clean")),
            _as_good(MERGED, SMALL, "patch only", by=1),
            _as_good(MERGED, LARGE, "clean", by=1),
        ),
        plots=tuple(
            Curves({m: m for m in methods}, f"{name} per evaluation", "epoch", f"test accuracy, {name} [%]", x="epoch")
            for name in SETS
        ),
        full=frozenset({"paper"}),
        presets=presets,
        note=NOTE,
    )


SECTIONS = (_section("cpu", frozenset({"cpu"})), _section("paper", frozenset({"smoke", "gpu", "paper"})))

BENCHMARK = Benchmark("patches", PRESETS, runs, execute, SECTIONS, "images of CIFAR-10 with patches")
