"""Fine-tuning pretrained networks on CIFAR (the paper's figures 4, 5, 6 and A10), at equal epochs and at equal seconds.

`gpu` and `paper` take torchvision's ResNets; `cpu` the one ImageNet network at hand, a MobileNet, and few images.
Beside the paper's learning rate, which it tuned for full fine-tuning and gave to all, each method gets its own, chosen
among the same ones by accuracy on other images. Seconds come from one timing of all methods in turns.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from benchmarks.core.records import Result
from benchmarks.core.runner import Benchmark, Context, Run
from benchmarks.experiments.transfer import data as transfer_data
from benchmarks.experiments.transfer.costs import elapsed, measure
from benchmarks.experiments.transfer.report import sections
from benchmarks.experiments.transfer.runs import (
    CONSTANT,
    PRESETS,
    VARIANTS,
    Job,
    TransferConfig,
    chosen,
    cost_key,
    key,
    runs,
)
from benchmarks.experiments.transfer.training import FULL, METHODS, Setting, begin, train

Accuracies = Callable[[Setting, set[int]], dict[int, float]]


def execute(config: TransferConfig, run: Run, context: Context) -> Sequence[Result]:
    """The timing, a trial of a learning rate, or one seed of a comparison."""
    job: Job = run.options
    (seed,) = run.seeds
    setting = Setting(job.pair.network, config.pixels, config.batch, 0, config.lr)
    if job.what == "cost":
        return [measure(setting, job.pair.classes, config.timings, context)]
    data = transfer_data.load(job.pair.data, context.data_dir, config.pool, config.test_images)
    task = data.tuning(config.validation) if job.what == "trial" else data.training(config.validation)
    task = task.draw(config.images, torch.Generator().manual_seed(seed)).to(context.device)
    setting = replace(setting, steps=config.epochs * (len(task.y) // config.batch))

    def accuracies(setting: Setting, evaluate: set[int]) -> dict[int, float]:
        net = begin(job.pair.network, job.pair.classes, seed, context.data_dir, context.device)
        return train(net, METHODS[job.method], setting, task, seed, evaluate)

    if job.what == "trial":
        return [{"validation accuracy": accuracies(replace(setting, lr=job.lr), {setting.steps})[setting.steps]}]
    variant = VARIANTS[job.variant]
    if variant.own:
        setting = replace(setting, lr=chosen(context.record, job.pair, job.method))
        done = context.record.results(key(job.pair, CONSTANT, job.method)).get(seed)
        if done and setting.lr == config.lr:  # the same again would give the same
            return [done]
    if variant.decay:
        setting = replace(setting, lr=config.decay_lr, decay=True)
    setting = replace(setting, weight_decay=variant.weight_decay)
    return [_compare(config, job, setting, accuracies, context.record.results(cost_key(job.pair))[0])]


def _compare(config: TransferConfig, job: Job, setting: Setting, accuracies: Accuracies, costs: Result) -> Result:
    """Test accuracy on the way to as many epochs, and to as many seconds, as full fine-tuning takes."""
    per_epoch = setting.steps // config.epochs
    budget = costs[FULL] * setting.steps * (1 + 1e-9)
    spent = elapsed(costs, job.method, job.pair.network, per_epoch, budget)
    equal = bisect_right(spent, budget)
    points = range(1, config.points + 1)
    by_epoch, by_time = ([max(1, end * i // config.points) for i in points] for end in (setting.steps, equal))
    if setting.decay and equal != setting.steps:  # the schedule ends elsewhere
        first = accuracies(setting, set(by_epoch))
        second = accuracies(replace(setting, steps=equal), set(by_time))
    else:
        first = second = accuracies(replace(setting, steps=max(setting.steps, equal)), {*by_epoch, *by_time})
    return {
        "accuracy": first[setting.steps],
        "accuracy at equal seconds": second[equal],
        "lr": setting.lr,
        "epochs at equal seconds": equal / per_epoch,
        "accuracy by epoch": [first[step] for step in by_epoch],
        "epoch": [step / per_epoch for step in by_epoch],
        "accuracy by time": [second[step] for step in by_time],
        "seconds": [spent[step - 1] for step in by_time],
    }


BENCHMARK = Benchmark("transfer", PRESETS, runs, execute, sections())
