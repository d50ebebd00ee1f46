"""What a training step of each method costs, and when a method has spent as much as another."""

import time
from collections.abc import Callable, Mapping
from itertools import accumulate
from statistics import median
from typing import Any

import torch

from benchmarks.core.records import Result
from benchmarks.core.runner import Context
from benchmarks.core.timing import synchronize
from benchmarks.experiments.transfer.models import SOURCES, Name
from benchmarks.experiments.transfer.training import (
    BLOCK,
    FC,
    FULL,
    METHODS,
    K,
    Method,
    Setting,
    begin,
    optimizer,
    step,
)

WARMUP = 2


def measure(setting: Setting, classes: int, repeats: int, context: Context) -> Result:
    """Seconds of a step of every method, the mean of a cycle of K steps: medians, and under "all" every repeat.

    All methods take turns in one process. On a CPU it is the time of this process, which other processes hardly
    disturb (one thread is the benchmark's business: OMP_NUM_THREADS=1); on a GPU it is the clock's. What prepares
    the images is not in it.
    """
    count = len(SOURCES[setting.network].parts)
    methods = {name: method for name, method in METHODS.items() if not method.gradual}
    methods |= {stage(n, count): Method(trained=n) for n in range(3, count)}
    size = (setting.batch, 3, setting.pixels, setting.pixels)
    x = torch.randn(size).contiguous(memory_format=torch.channels_last).to(context.device)
    y = (torch.arange(setting.batch) % classes).to(context.device)

    def cycle(method: Method) -> Callable[[], None]:
        net = begin(setting.network, classes, 0, context.data_dir, context.device)
        stepper = optimizer(net, method, setting)

        def call() -> None:
            for _ in range(K):
                step(net, stepper, x, y)

        return call

    cases = {name: cycle(method) for name, method in methods.items()}
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for repeat in range(WARMUP + repeats):
        for name, call in cases.items():
            spent = _seconds(call, context.device)
            if repeat >= WARMUP:
                seconds[name].append(spent / K)
    return {name: median(values) for name, values in seconds.items()} | {"all": seconds}


def _seconds(call: Callable[[], None], device: torch.device) -> float:
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    synchronize(device)
    start = clock()
    call()
    synchronize(device)
    return clock() - start


def stage(trained: int, count: int) -> str:
    """Under which name the cost of training the last so many of all parts stands."""
    return {1: FC, 2: BLOCK, count: FULL}.get(trained, f"last {trained} parts only")


def elapsed(costs: Mapping[str, Any], method: str, network: Name, per_epoch: int, budget: float) -> list[float]:
    """Seconds after 1, 2, 3, … steps of a method, at least as far as the budget of seconds goes."""
    count = len(SOURCES[network].parts)
    cheapest = min(value for name, value in costs.items() if name != "all")
    steps = int(budget / cheapest) + 2
    if not METHODS[method].gradual:
        return list(accumulate([costs[method]] * steps))
    return list(accumulate(costs[stage(min(done // per_epoch + 1, count), count)] for done in range(steps)))
