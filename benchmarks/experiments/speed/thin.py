"""Seconds of training thin networks against the same networks whole, nn.Dropout beside them.

A timed call is one or more whole cycles: k - 1 masked steps and the joint step, each with forward, backward, optimizer
step and zero_grad. Every repeat times plain training, thin training with and without `resident`, and dropout one after
the other in one process, and gives one ratio of each; the report shows their median, smallest and largest.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

import mrreg
from benchmarks.core.records import Record, Result
from benchmarks.core.runner import Benchmark, Context, Run
from benchmarks.core.sections import Claim, Row, Section, Values, metric
from benchmarks.core.timing import interleaved
from benchmarks.experiments.speed.thin_networks import NETWORKS

LR = 1e-6  # so small that thousands of steps on one batch leave ordinary numbers ordinary
WAYS = {"thin": "thin", "resident": "resident", "dropout": "nn.Dropout"}
OPTIMIZERS: Mapping[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": partial(torch.optim.SGD, lr=LR),
    "AdamW": partial(torch.optim.AdamW, lr=LR),
}


@dataclass(frozen=True)
class Case:
    """A network, how it is trained, and the ratio to plain training that it should not exceed.

    Args:
        network: One of `NETWORKS`.
        optimizer: One of `OPTIMIZERS`.
        target: Seconds of a resident cycle over seconds of a plain one, at most; None where nothing is aimed at.
        p: Share of units that are absent.
        k: Steps per cycle.
        compiled: Whether all of them run under torch.compile.
        cycles: How many cycles are timed at once.
    """

    network: str
    optimizer: str
    target: float | None = None
    p: float = 0.5
    k: int = 5
    compiled: bool = False
    cycles: int = 1

    @property
    def name(self) -> str:
        """What the report calls it."""
        options = f", p = {self.p}" * (self.p != 0.5) + f", k = {self.k}" * (self.k != 5) + ", compiled" * self.compiled
        return f"{self.network}, {self.optimizer}{options}"


@dataclass(frozen=True)
class ThinSpeedConfig:
    """What is timed; `seeds` is the number of repeats."""

    seeds: int
    cases: tuple[Case, ...]


TARGETS = {
    "encoder block 256/1024": (0.66, 0.68),
    "BERT 4 x 256": (0.68, 0.80),
    "two ResNet blocks of 64": (0.68, 0.68),
    "nn.TransformerEncoderLayer": (0.70, 0.70),
    "784-1000-1000-10, batch 128": (0.62, 0.70),
    "784-1000-1000-10, batch 512": (0.50, 0.55),
}
AIMED = tuple(
    Case(network, optimizer, target)
    for network, targets in TARGETS.items()
    for optimizer, target in zip(OPTIMIZERS, targets, strict=True)
)
OTHERS = (
    Case("encoder block 256/1024", "SGD", 0.82, p=0.25),
    Case("BERT 4 x 256", "SGD", p=0.25),
    Case("784-1000-1000-10, batch 128", "SGD", p=0.25),
    *(Case(network, "SGD", k=10) for network in TARGETS),
    Case("encoder block 256/1024", "SGD", compiled=True),
    Case("784-1000-1000-10, batch 512", "SGD", compiled=True),
)
GPU = tuple(
    Case(network, optimizer, compiled=compiled, cycles=5)
    for compiled in (False, True)
    for network in TARGETS
    for optimizer in OPTIMIZERS
)
PRESETS = {
    "smoke": ThinSpeedConfig(2, (Case("8-16-16-4", "SGD"), Case("8-16-16-4", "AdamW", p=0.25, k=2))),
    "cpu": ThinSpeedConfig(11, AIMED + OTHERS),
    "gpu": ThinSpeedConfig(21, GPU),
}


def trainer(case: Case, way: str, inputs: Tensor) -> Callable[[], None]:
    """A call that trains for the cycles of a case."""
    torch.manual_seed(0)
    model: nn.Module = NETWORKS[case.network].build(case.p if way == "dropout" else 0.0).to(inputs.device)
    thin = way in ("thin", "resident")
    if thin:
        model, _ = mrreg.thin(model, p=case.p, k=case.k, example_inputs=inputs[:2], resident=way == "resident")
    optimizer = OPTIMIZERS[case.optimizer](model.parameters())
    if thin:
        mrreg.attach(optimizer, model)
    forward: Any = torch.compile(model) if case.compiled else model

    def call() -> None:
        for _ in range(case.k * case.cycles):
            output = forward(inputs)
            (output if isinstance(output, Tensor) else output[0]).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    return call


def execute(config: ThinSpeedConfig, run: Run, context: Context) -> list[Result]:
    """Time a case."""
    case: Case = run.options
    torch.compiler.reset()
    torch.manual_seed(0)
    inputs = NETWORKS[case.network].inputs().to(context.device)
    calls = {way: trainer(case, way, inputs) for way in ("plain", *WAYS)}
    timed = interleaved(calls, len(run.seeds), context.device, warmup=2)
    return [
        {**{way: timed[way][i] / plain for way in WAYS}, "target": case.target, "seconds of plain cycles": plain}
        for i, plain in enumerate(timed["plain"])
    ]


def runs(config: ThinSpeedConfig) -> list[Run]:
    """List one run for each case."""
    return [Run(case.name, tuple(range(config.seeds)), case) for case in config.cases]


def _margin(case: Case) -> Values:
    target = case.target
    assert target is not None
    return lambda record: [target - ratio for ratio in record.numbers(case.name, "resident").values()]


def _medians(cases: tuple[Case, ...], record: Record) -> list[str]:
    """Say each ratio as one reads timings: median, smallest and largest."""
    said = []
    for case in cases:
        ratios = {label: list(record.numbers(case.name, way).values()) for way, label in WAYS.items()}
        each = [f"{label} {median(r):.2f} ({min(r):.2f} to {max(r):.2f})" for label, r in ratios.items() if r]
        if each:
            said.append(f"{case.name}: {'; '.join(each)}" + (f"; wanted {case.target}" if case.target else ""))
    return said


def _section(title: str, cases: tuple[Case, ...], preset: str) -> Section:
    rows = tuple(Row(f"{case.name}: {label}", metric(case.name, way)) for case in cases for way, label in WAYS.items())
    claims = tuple(
        Claim(f"{case.name}, resident: at most {case.target}", _margin(case)) for case in cases if case.target
    )
    note = "Seconds of whole cycles of k = 5 at p = 0.5, unless a row says otherwise; below 1 is faster than plain."
    return Section(
        "",
        title,
        center="median",
        rows=rows,
        claims=claims,
        full=frozenset({preset}),
        presets=frozenset({preset}),
        note=note,
        facts=partial(_medians, cases),
    )


SECTIONS = (
    _section("Seconds of training thin networks over plain training, one CPU thread", AIMED, "cpu"),
    _section("The same with other p and k, and compiled", OTHERS, "cpu"),
    _section("Seconds of training thin networks over plain training, GPU", GPU, "gpu"),
)

BENCHMARK = Benchmark("speed thin", PRESETS, runs, execute, SECTIONS)
