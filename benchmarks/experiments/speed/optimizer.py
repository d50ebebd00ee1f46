"""Seconds of `step()`: one cycle of MultirateSGD against as many steps of torch.optim.SGD, on the same shapes.

One tensor is fast and all others are slow, as when a head is fast: most of a fast step is then drift. Every repeat
times many cycles of both, interleaved in one process, and gives one ratio; the report shows median, smallest, largest.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import torch
from torch import nn

import mrreg
from benchmarks.core.records import Result
from benchmarks.core.runner import Benchmark, Context, Run
from benchmarks.core.timing import interleaved
from benchmarks.experiments.speed.common import LR, SpeedConfig, ratios, runs, section

K = 5


@dataclass(frozen=True)
class Case:
    """Sizes, the momentum, the ratio that the library promises not to exceed, and how many cycles are a repeat."""

    tensors: int
    entries: int
    momentum: float
    target: float
    cycles: int

    @property
    def name(self) -> str:
        return f"{self.tensors} tensors of {self.entries:,} entries, momentum {self.momentum:g}"


def cases(sizes: Sequence[int], large: int, cycles: tuple[int, int]) -> tuple[Case, ...]:
    """Both momenta for every number of tensors, small and large, with the promised ratios and their cycles."""
    small, few = cycles
    return tuple(
        Case(tensors, *each)
        for tensors in sizes
        for each in ((large, 0.9, 0.7, few), (large, 0.0, 1.5, few), (100, 0.9, 1.0, small), (100, 0.0, 1.5, small))
    )


PRESETS = {
    "smoke": SpeedConfig(2, cases([10], 2_000, (3, 1))),
    "cpu": SpeedConfig(9, cases([10, 100], 1_000_000, (201, 3))),
    "gpu": SpeedConfig(9, cases([10, 100], 1_000_000, (201, 21))),
}


class Tensors(nn.Module):
    """Tensors with gradients, as a backward pass would have left them; the forward computes nothing."""

    def __init__(self, case: Case, device: torch.device) -> None:
        super().__init__()
        self.all = nn.ParameterList(torch.randn(case.entries, device=device) for _ in range(case.tensors))
        for parameter in self.all:
            parameter.grad = torch.randn_like(parameter)

    def forward(self) -> None:
        """Compute nothing."""


def execute(config: SpeedConfig, run: Run, context: Context) -> list[Result]:
    """Time one case step by step in turn: a busy machine then disturbs few of the numbers behind each median."""
    case: Case = run.options
    torch.manual_seed(0)
    ours, theirs = Tensors(case, context.device), Tensors(case, context.device)
    multirate = mrreg.MultirateSGD(ours, lr=LR, k=K, fast=[ours.all[-1]], momentum=case.momentum, foreach=True)
    sgd = torch.optim.SGD(theirs.parameters(), lr=LR, momentum=case.momentum, foreach=True)
    steps = K * case.cycles

    def step(tensors: Tensors, optimizer: torch.optim.Optimizer) -> None:
        tensors()
        optimizer.step()

    calls = {"multirate": partial(step, ours, multirate), "plain": partial(step, theirs, sgd)}
    timed = interleaved(calls, len(run.seeds) * steps, context.device, warmup=2 * K)
    return [
        ratios({name: cycle(seconds[start : start + steps]) for name, seconds in timed.items()})
        for start in range(0, len(timed["plain"]), steps)
    ]


def cycle(seconds: Sequence[float]) -> float:
    """Seconds of one cycle from those of the steps of many: the median of each step of the cycle, added up."""
    return sum(median(seconds[step::K]) for step in range(K))


SECTION = section(
    f"Seconds of {K} steps of MultirateSGD(k={K}) over those of torch.optim.SGD(foreach=True)",
    PRESETS["cpu"].cases, ["cpu", "gpu"], "multirate",
    "One tensor is fast, all others are slow; below 1 the multirate optimizer is the faster one.",
)  # fmt: skip
BENCHMARK = Benchmark("speed optimizer", PRESETS, runs, execute, (SECTION,))
