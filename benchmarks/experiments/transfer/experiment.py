"""Fine-tuning pretrained networks on CIFAR (the paper's figures 4, 5, 6 and A10), at equal epochs and at equal seconds.

`gpu` and `paper` take torchvision's ResNets; `cpu` the one ImageNet network at hand, a MobileNet, and few images.
Beside the paper's learning rate, which it tuned for full fine-tuning and gave to all, each method gets its own, chosen
among the same ones by accuracy on other images. Preparing the images is not in the cost of a step.
"""

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import repeat

import torch
from torch import Tensor

from benchmarks.core.comparison import Comparison, Costs, Job, Outcome, evenly
from benchmarks.core.records import Record, Result
from benchmarks.core.sections import Bars, Claim, Curves, Row, Section, Values, gain, metric
from benchmarks.core.study import Study
from benchmarks.core.study_sections import searched
from benchmarks.core.training import Batch, Batches, Loop, shuffled
from benchmarks.experiments.transfer import data as transfer_data
from benchmarks.experiments.transfer.config import (
    BLOCK,
    CONSTANT,
    DECAY,
    FC,
    FULL,
    METHODS,
    MOBILENET,
    MULTIRATE,
    MULTIRATE_BLOCK,
    MULTIRATE_HELD,
    OWN,
    PRESETS,
    RESNET20,
    RESNET34,
    RESNET50,
    VARIANTS,
    WEIGHT_DECAY,
    K,
    Method,
    Pair,
    TransferConfig,
    Variant,
    optimizer,
    search,
    stage,
    stages,
    unfreeze,
)  # fmt: skip
from benchmarks.experiments.transfer.data import prepare
from benchmarks.experiments.transfer.models import SOURCES, pretrained

CHUNK = 250  # images evaluated at once


def comparisons(config: TransferConfig) -> list[Comparison[Method]]:
    """Return variant by variant, the main one first, every pair of network and data."""
    return [
        _comparison(config, pair, variant) for variant in VARIANTS for pair in config.pairs if variant in pair.variants
    ]


def _comparison(config: TransferConfig, pair: Pair, name: str) -> Comparison[Method]:
    variant, epoch, count = VARIANTS[name], config.epoch(pair), len(SOURCES[pair.network].parts)

    def charge(method: str, how: Method, step: int) -> str:
        return stage(min(step // epoch + 1, count), count) if how.gradual else method

    timed = {each: method for each, method in METHODS.items() if not method.gradual} | stages(pair.network)
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
    data = transfer_data.load(pair.data, job.data_dir, config.pool, config.test_images)
    task = data.without_last(config.validation).drawn(config.images, torch.Generator().manual_seed(seed)).to(job.device)
    torch.manual_seed(seed)
    net = pretrained(pair.network, pair.classes, job.data_dir)
    net = net.to(device=job.device, memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    stepper = optimizer(net, pair.network, method, rate(config, method, variant), variant.weight_decay)
    rates = [group["lr"] for group in stepper.param_groups]

    def before(step: int) -> None:
        if method.gradual:
            unfreeze(net, pair.network, min(step // config.epoch(pair) + 1, len(SOURCES[pair.network].parts)))
        if variant.decay:
            for group, lr in zip(stepper.param_groups, rates, strict=True):
                group["lr"] = lr * (1 - step / job.steps)

    def take(index: Tensor) -> Batch:
        chosen = index.to(job.device)
        return prepare(task.x[chosen], config.pixels), task.y[chosen]

    order = shuffled(len(task.y), config.batch, short=False)
    batches: Iterator[Batch] = Batches(order, take, torch.Generator().manual_seed(seed))
    if job.what == "costs":
        batches = repeat(next(batches))
    large = partial(prepare, size=config.pixels)
    splits = {
        name: partial(each.to(job.device).held_out, CHUNK, large)
        for name, each in (("validation", data.validation(config.validation)), ("test", data))
    }
    return Loop(net, stepper, batches, splits, before=before)


def rate(config: TransferConfig, method: Method, variant: Variant) -> float:
    """Return the learning rate of a method: its own, or that of the variant."""
    return method.lr or (config.decay_lr if variant.decay else config.lr)


def result(config: TransferConfig, outcome: Outcome[Method]) -> Result:
    """Return test accuracy on the way to as many epochs, and to as many seconds, as full fine-tuning takes."""
    if outcome.what == "trial":
        return {"validation accuracy": outcome.last()}
    pair, variant = outcome.setting
    steps, seconds, epoch = outcome.at_steps(), outcome.at_seconds(), config.epoch(pair)
    return {
        "accuracy": steps[-1],
        "accuracy at equal seconds": seconds[-1],
        "lr": rate(config, outcome.method, variant),
        "epochs at equal seconds": outcome.equal[-1] / epoch,
        "accuracy by epoch": steps,
        "epoch": [step / epoch for step in outcome.budgets],
        "accuracy by time": seconds,
        "seconds": list(outcome.seconds),
    }


def data_of(config: TransferConfig) -> str:
    """Return the names of the data sets."""
    return ", ".join(sorted({transfer_data.TITLES[pair.data] for pair in config.pairs}))


EPOCHS, SECONDS = "accuracy", "accuracy at equal seconds"
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
    "layer3 of the ResNet-20, layer4 of other ResNets. Gradual unfreezing (Howard and Ruder, 2018) adds one part an "
    "epoch."
)
CPU = PRESETS["cpu"]
ABOUT_PAIR = {
    RESNET20: (
        " Beyond the paper: a small network that knows the photographs of CIFAR-10 learns the digits of MNIST (28 "
        "pixels with a border of two), from as many images in as many epochs as the record's configuration says."
    ),
    MOBILENET: (
        f" Preset cpu: a {SOURCES[MOBILENET.network].title} is fine-tuned on {CPU.images:,} images of CIFAR-10 at "
        f"{CPU.pixels} pixels (drawn anew for each seed) in batches of {CPU.batch} for {CPU.epochs} epochs, instead of "
        f"a ResNet-34 on all of them; {CPU.test_images:,} test images."
    ),
}
WEIGHTS = "weights pretrained on ImageNet"
NEEDS = {RESNET34: WEIGHTS, RESNET50: f"{WEIGHTS} and CIFAR-100"}  # that are not at hand everywhere
ABOUT = {
    CONSTANT: " Everyone has the paper's learning rate, 0.001.",
    OWN: " Everyone has the learning rate that does best for it at equal epochs on other images, of those tried.",
    DECAY: " From the paper's 0.005 linearly to 0 at the end of each run; equal seconds are runs of their own.",
    WEIGHT_DECAY: " Learning rate 0.001, weight decay 5e-4.",
}
AT_SECONDS = (
    " Every method takes as many steps as the seconds of full fine-tuning buy, from one timing of all methods in turns "
    "(time of the process on one thread on a CPU, the clock's on a GPU; preparing images is not in it)."
)


SHOWN = ((MOBILENET, ("smoke", "cpu")), (RESNET34, ("gpu", "paper")), (RESNET50, ("gpu", "paper")))


def sections(shown: Iterable[tuple[Pair, Iterable[str]]] = SHOWN) -> tuple[Section, ...]:
    """Of each pair and variant two sections, and of each pair what a step costs, in the presets that have it."""
    found = []
    for pair, presets in shown:
        for variant in pair.variants:
            found += [_compared(pair, variant, name, frozenset(presets)) for name in (EPOCHS, SECONDS)]
        found.append(_speed(pair, frozenset(presets)))
    return tuple(found)


def _key(pair: Pair, variant: str, method: str) -> str:
    return f"{pair.title}: {variant}: {method}"


def _compared(pair: Pair, variant: str, name: str, presets: frozenset[str]) -> Section:
    methods = {method: _key(pair, variant, method) for method in pair.methods(variant)}
    timed = name == SECONDS
    x, y, label = ("seconds", "time", "seconds of training") if timed else ("epoch", "epoch", "epoch")
    return Section(
        FIGURES.get((pair, variant), ""),
        f"{pair.title}, {variant}: equal {'seconds' if timed else 'epochs'}", "%",
        rows=tuple(Row(method, metric(each, name)) for method, each in methods.items()),
        claims=_claims(pair, variant, name),
        plots=(Curves(methods, f"accuracy by {y}", label, "test accuracy in %", x=x), Bars("test accuracy in %")),
        full=frozenset({"paper"}), presets=presets,
        needs=NEEDS.get(pair, ""),
        note=NOTE + ABOUT_PAIR.get(pair, "") + ABOUT[variant] + (AT_SECONDS if timed else ""),
        facts=partial(_facts, pair=pair) if variant == OWN and not timed else lambda record: (),
    )  # fmt: skip


def _claims(pair: Pair, variant: str, name: str) -> tuple[Claim, ...]:
    """Return the paper's: no less accurate than full fine-tuning, more than others; at equal seconds, more than all."""

    def more(one: str, other: str, above: float = 0.0) -> Claim:
        text = f"{one}: {'less than half a point below' if above else 'more accurate than'} {other}"
        return Claim(text, gain(_key(pair, variant, one), _key(pair, variant, other), name), above)

    ours = [each for each in (MULTIRATE, MULTIRATE_BLOCK, MULTIRATE_HELD) if each in pair.methods(variant)]
    others = [each for each in (FC, BLOCK) if each in pair.methods(variant)]
    full = [more(each, FULL, -MARGIN if name == EPOCHS else 0.0) for each in ours]
    return (*full, *(more(each, other) for each in ours[:1] for other in others))


def _speed(pair: Pair, presets: frozenset[str]) -> Section:
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
        + (" Seconds of the process, on one thread." if pair in ABOUT_PAIR else ""),
    )  # fmt: skip


def _facts(record: Record, *, pair: Pair) -> list[str]:
    return searched(record, search(pair, record.config["lrs"]), pair.methods(OWN))


STUDY = Study("transfer", PRESETS, comparisons, build, result=result, data=data_of)
BENCHMARK = STUDY.benchmark(sections())
