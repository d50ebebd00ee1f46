"""Fine-tuning pretrained networks on CIFAR (the paper's figures 4, 5, 6 and A10), at equal epochs and at equal seconds.

`gpu` and `paper` take torchvision's ResNets; `cpu` the one ImageNet network at hand, a MobileNet, and few images.
Beside the paper's learning rate, which it tuned for full fine-tuning and gave to all, each method gets its own, chosen
among the same ones by accuracy on other images. Preparing the images is not in the cost of a step.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import Literal

import torch
from torch import Tensor

from benchmarks.core.comparison import Comparison, Costs, Job, Search, evenly
from benchmarks.core.records import Record
from benchmarks.core.sections import AT_SECONDS, Claim, Curves, Row, Section, Shown, Values, gain, searched
from benchmarks.core.study import Study
from benchmarks.core.training import Batch, Batches, Loop, shuffled
from benchmarks.data.cifar import cifar10, cifar100
from benchmarks.experiments.transfer import models
from benchmarks.experiments.transfer.models import (
    BLOCK,
    FC,
    FULL,
    GRADUAL,
    METHODS,
    MULTIRATE,
    MULTIRATE_BLOCK,
    MULTIRATE_HELD,
    SOURCES,
    K,
    Method,
    unfreeze,
)  # fmt: skip

CHUNK = 250  # images evaluated at once
DATA = {"cifar10": ("CIFAR-10", 10, cifar10), "cifar100": ("CIFAR-100", 100, cifar100)}
"""Title and classes of each data set, and how its first images are read."""


PAPER = (FULL, MULTIRATE, MULTIRATE_BLOCK, FC, BLOCK, GRADUAL)
FEW = (FULL, MULTIRATE, BLOCK)  # for which there is time on a CPU


@dataclass(frozen=True)
class Variant:
    """A comparison that differs from the paper's main one."""

    note: str
    decay: bool = False  # the learning rate falls linearly to 0
    weight_decay: float = 0.0  # as in torch.optim.SGD
    own: bool = False  # every method has the learning rate that a search found for it
    few: bool = False  # it has `few` seeds, and not `seeds`


CONSTANT, OWN, DECAY, WEIGHT_DECAY = "constant lr", "own lr", "linear decay", "weight decay"
VARIANTS = {
    CONSTANT: Variant(" Everyone has the paper's learning rate, 0.001."),
    OWN: Variant(
        " Everyone has the learning rate that does best for it at equal epochs on other images, of those tried.",
        own=True,
    ),
    DECAY: Variant(
        " From the paper's 0.005 linearly to 0 at the end of each run; equal seconds are runs of their own.",
        decay=True, few=True,
    ),
    WEIGHT_DECAY: Variant(" Learning rate 0.001, weight decay 5e-4.", weight_decay=5e-4, few=True),
}  # fmt: skip


@dataclass(frozen=True)
class Pair:
    """A pretrained network, what it is fine-tuned on, and in which variants."""

    network: models.Name
    data: Literal["cifar10", "cifar100"]
    variants: tuple[str, ...] = tuple(VARIANTS)

    @property
    def title(self) -> str:
        return f"{SOURCES[self.network].title} on {DATA[self.data][0]}"

    @property
    def parts(self) -> int:
        return len(SOURCES[self.network].parts)

    def methods(self, variant: str) -> tuple[str, ...]:
        """Return who takes part in a variant."""
        own = (MULTIRATE_HELD,) if VARIANTS[variant].own else ()
        return (*(FEW if self.network == "mobilenet" and variant != CONSTANT else PAPER), *own)


MOBILENET = Pair("mobilenet", "cifar10")
RESNET34 = Pair("resnet34", "cifar10")
RESNET50 = Pair("resnet50", "cifar100", (CONSTANT,))


@dataclass(frozen=True)
class TransferConfig:
    """The pairs that are compared, and their images; the last `validation` training images are for the search alone."""

    seeds: int
    few: int
    pairs: tuple[Pair, ...]
    epochs: int
    pool: int | None = None  # training images that are read; None is all
    images: int | None = None  # drawn anew for each seed; None is all but those for validation
    test_images: int | None = None
    validation: int = 2000
    pixels: int = 224
    batch: int = 32
    lr: float = 0.001
    decay_lr: float = 0.005
    lrs: tuple[float, ...] = (0.001, 0.002, 0.004, 0.008)
    points: int = 5
    timings: int = 15

    @property
    def epoch(self) -> int:
        """Return the steps of an epoch; the last, short batch is left out."""
        return (self.images or (self.pool or 50_000) - self.validation) // self.batch


PRESETS = {
    "smoke": TransferConfig(
        seeds=1, few=1, pairs=(Pair("mobilenet", "cifar10", (OWN, DECAY)),), epochs=1, pool=114, images=64,
        test_images=50, validation=50, pixels=32, lrs=(0.001,), points=1, timings=1,
    ),
    "cpu": TransferConfig(
        seeds=5, few=3, pairs=(MOBILENET,), epochs=4, images=640, test_images=1000, validation=1000, pixels=96,
        batch=16, points=3,
    ),
    "gpu": TransferConfig(seeds=5, few=3, pairs=(RESNET34, RESNET50), epochs=5, images=10_000),
    "paper": TransferConfig(seeds=20, few=20, pairs=(RESNET34, RESNET50), epochs=10),
}  # fmt: skip


def search(pair: Pair, lrs: Sequence[float]) -> Search:
    return Search({method: [{"lr": lr} for lr in lrs] for method in pair.methods(OWN)}, of=pair.title)


def comparisons(config: TransferConfig) -> list[Comparison[Method]]:
    """Return variant by variant, the main one first, every pair of network and data."""
    return [
        _comparison(config, pair, variant) for variant in VARIANTS for pair in config.pairs if variant in pair.variants
    ]


def _comparison(config: TransferConfig, pair: Pair, name: str) -> Comparison[Method]:
    variant, epoch, count = VARIANTS[name], config.epoch, pair.parts

    def stage(trained: int) -> str:
        """Return the name under which the cost of training the last so many of all parts stands."""
        return {1: FC, 2: BLOCK, count: FULL}.get(trained, f"last {trained} parts only")

    def charge(method: str, how: Method, step: int) -> str:
        return stage(min(step // epoch + 1, count)) if how.gradual else method

    timed = {each: method for each, method in METHODS.items() if not method.gradual}
    timed |= {stage(n): Method(trained=n if n < count else None) for n in range(1, count + 1)}
    return Comparison(
        {method: METHODS[method] for method in pair.methods(name)},
        min(config.few, config.seeds) if variant.few else config.seeds,
        evenly(config.epochs * epoch, config.points),
        Costs(FULL, config.timings, K, f"{pair.title}: cost", timed, charge),
        search(pair, config.lrs) if variant.own else None,
        setting=(pair, variant),
        prefix=f"{pair.title}: {name}: ",
        scheduled=variant.decay,
    )


def build(config: TransferConfig, method: Method, seed: int, job: Job) -> Loop:
    """Return the training of a pretrained network; images and their order follow from the seed alone."""
    pair, variant = job.setting
    _, classes, load = DATA[pair.data]
    data = load(job.data_dir, config.pool, config.test_images)
    task = data.without_last(config.validation).drawn(config.images, torch.Generator().manual_seed(seed)).to(job.device)
    torch.manual_seed(seed)
    net = models.pretrained(pair.network, classes, job.data_dir)
    net = net.to(device=job.device, memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    lr = method.lr or (config.decay_lr if variant.decay else config.lr)
    stepper = models.optimizer(net, pair.network, method, lr, variant.weight_decay)
    rates = [group["lr"] for group in stepper.param_groups]

    def before(step: int) -> None:
        if method.gradual:
            unfreeze(net, pair.network, min(step // config.epoch + 1, pair.parts))
        if variant.decay:
            for group, lr in zip(stepper.param_groups, rates, strict=True):
                group["lr"] = lr * (1 - step / job.steps)

    def take(index: Tensor) -> Batch:
        chosen = index.to(job.device)
        return models.prepare(task.x[chosen], config.pixels), task.y[chosen]

    order = shuffled(len(task.y), config.batch, short=False)
    batches: Iterator[Batch] = Batches(order, take, torch.Generator().manual_seed(seed))
    if job.what == "costs":
        batches = repeat(next(batches))
    large = partial(models.prepare, size=config.pixels)
    splits = {
        name: partial(each.to(job.device).held_out, CHUNK, large)
        for name, each in (("validation", data.validation(config.validation)), ("test", data))
    }
    return Loop(net, stepper, batches, splits, before=before)


FIGURES = {
    (RESNET34, CONSTANT): "Figure 4", (RESNET34, DECAY): "Figure 5", (RESNET34, WEIGHT_DECAY): "Figure A10",
    (RESNET50, CONSTANT): "Figure 6", (MOBILENET, CONSTANT): "Figure 4", (MOBILENET, DECAY): "Figure 5",
    (MOBILENET, WEIGHT_DECAY): "Figure A10",
}  # fmt: skip
FASTER = 1.8  # "almost half the time"
MARGIN = 0.5  # points that "without reducing the accuracy" may cost
NOTE = (
    "SGD with momentum 0.9, no augmentation; BatchNorm in training mode everywhere, in frozen and slow parts too. "
    "All methods of a seed share training images, their order and the new last layer. The figures of the paper have "
    "no numbers to compare with; what it says of them stands as claims. The last block is stage3 of the MobileNet, "
    "layer4 of other ResNets. Gradual unfreezing (Howard and Ruder, 2018) adds one part an "
    "epoch."
)
SMALLER = (
    " Preset cpu: a MobileNetV1 (width 0.25) is fine-tuned on 640 images of CIFAR-10 at 96 pixels (drawn anew for each "
    "seed) in batches of 16 for 4 epochs, instead of a ResNet-34 on all of them; 1,000 test images."
)


def shown(pair: Pair, variant: str, presets: frozenset[str]) -> Shown:
    """Return one comparison; the paper claims that ours are more accurate than training in part."""
    methods = {method: f"{pair.title}: {variant}: {method}" for method in pair.methods(variant)}
    facts = partial(_facts, pair) if variant == OWN else lambda record, name: ()
    return Shown(
        f"{pair.title}, {variant}", methods, [(MULTIRATE, each) for each in (FC, BLOCK) if each in methods],
        note=NOTE + (SMALLER if pair == MOBILENET else "") + VARIANTS[variant].note, facts=facts, presets=presets,
        ylabel="test accuracy in %", against=[(MULTIRATE, FULL)],
        task="CIFAR-10, MobileNet pretrained on ImageNet" if pair == MOBILENET and variant == OWN else "",
    )  # fmt: skip


def sections(each: Shown, pair: Pair, variant: str) -> Iterable[Section]:
    """Return it at equal epochs, where ours are to be hardly less accurate than full fine-tuning, and seconds: more."""
    ours = [name for name in (MULTIRATE, MULTIRATE_BLOCK, MULTIRATE_HELD) if name in each.methods]
    for how, number, curve, x, above in (
        ("epochs", "accuracy", "accuracy by step", "step", -MARGIN),
        ("seconds", "accuracy at equal seconds", "accuracy by time", "seconds", 0.0),
    ):
        words = "less than half a point below" if above else "more accurate than"
        claims = [
            Claim(f"{one}: {words} {FULL}", gain(each.methods[one], each.methods[FULL], number), above) for one in ours
        ]
        label = "steps" if x == "step" else "seconds of training"
        yield each.section(
            f"equal {how}", number, Curves(each.methods, curve, label, each.ylabel, x=x),
            AT_SECONDS if how == "seconds" else "", item=FIGURES.get((pair, variant), ""), claims=claims,
            full=frozenset({"paper"}), needs="" if pair == MOBILENET else "weights pretrained on ImageNet",
        )  # fmt: skip


def speed(pair: Pair, presets: frozenset[str]) -> Section:
    """Return what a step costs, from the timing."""

    def faster(name: str) -> Values:
        def values(record: Record) -> list[float]:
            timings = [result["all"] for result in record.results(f"{pair.title}: cost").values()]
            return [full / own for each in timings for full, own in zip(each[FULL], each[name], strict=True)]

        return values

    return Section(
        "", f"{pair.title}: how many epochs fit into the time of one of full fine-tuning", center="median",
        rows=tuple(Row(name, faster(name)) for name, method in METHODS.items() if not method.gradual),
        claims=(Claim(f"{MULTIRATE}: more than {FASTER} times as fast", faster(MULTIRATE), FASTER),),
        presets=presets,
        note="Forward, backward and optimizer of a whole cycle; all methods in turns in one process."
        + (" Seconds of the process, on one thread." if pair == MOBILENET else ""),
    )  # fmt: skip


def _facts(pair: Pair, record: Record, name: str) -> list[str]:
    return [] if "seconds" in name else searched(record, search(pair, record.config["lrs"]), pair.methods(OWN))


STUDY = Study(
    "transfer", PRESETS, comparisons, build,
    data=lambda config: ", ".join(sorted({DATA[pair.data][0] for pair in config.pairs})),
)  # fmt: skip


LARGE = frozenset({"gpu", "paper"})
SHOWN, SECTIONS = list[Shown](), list[Section]()
for pair, presets in ((MOBILENET, frozenset({"smoke", "cpu"})), (RESNET34, LARGE), (RESNET50, LARGE)):
    for variant in pair.variants:
        SHOWN.append(shown(pair, variant, presets))
        SECTIONS += sections(SHOWN[-1], pair, variant)
    SECTIONS.append(speed(pair, presets))
BENCHMARK = STUDY.benchmark(SECTIONS, SHOWN)
