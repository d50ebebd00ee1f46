"""Fine-tuning pretrained networks on CIFAR (the paper's figures 4, 5, 6 and A10), at equal epochs and at equal seconds.

`gpu` and `paper` take torchvision's ResNets; `cpu` the one ImageNet network at hand, a MobileNet, and few images.
Beside the paper's learning rate, which it tuned for full fine-tuning and gave to all, each method gets its own, chosen
among the same ones by accuracy on other images. Preparing the images is not in the cost of a step.
"""

from collections.abc import Iterator
from functools import partial
from itertools import repeat

import torch
from torch import Tensor

from benchmarks.core.comparison import Comparison, Costs, Job, Outcome, evenly
from benchmarks.core.records import Result
from benchmarks.core.study import Study
from benchmarks.core.training import Batch, Batches, Loop, shuffled
from benchmarks.experiments.transfer import data as transfer_data
from benchmarks.experiments.transfer.config import PRESETS, VARIANTS, Pair, TransferConfig, Variant, search
from benchmarks.experiments.transfer.data import prepare
from benchmarks.experiments.transfer.methods import FULL, METHODS, K, Method, optimizer, stage, stages, unfreeze
from benchmarks.experiments.transfer.models import SOURCES, pretrained
from benchmarks.experiments.transfer.report import sections

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
    task = data.training(config.validation).draw(config.images, torch.Generator().manual_seed(seed)).to(job.device)
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
    splits = {"validation": data.tuning(config.validation), "test": data}
    shown = {name: partial(_held_out, config, each.to(job.device)) for name, each in splits.items()}
    return Loop(net, stepper, batches, shown, before=before)


def _held_out(config: TransferConfig, task: transfer_data.Task) -> Iterator[Batch]:
    for x, y in zip(task.test_x.split(CHUNK), task.test_y.split(CHUNK), strict=True):  # type: ignore[no-untyped-call]
        yield prepare(x, config.pixels), y


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


STUDY = Study("transfer", PRESETS, comparisons, build, result=result, data=data_of)
BENCHMARK = STUDY.benchmark(sections())
