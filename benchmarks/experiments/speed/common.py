"""What the speed benchmarks share: ways to train that are timed in turns, and what is shown of their ratios to plain.

In `masks` and `thin` a timed call is one or more whole cycles: k - 1 masked steps and the joint step, each with
forward, backward, optimizer step and zero_grad. Every repeat times plain training, ours and nn.Dropout one after the
other in one process and gives one ratio of each; the report shows their median, smallest and largest.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import mrreg
from benchmarks.core import stats
from benchmarks.core.records import Result
from benchmarks.core.runner import Benchmark, Context, Run
from benchmarks.core.sections import Claim, Row, Section, Values, metric
from benchmarks.core.timing import interleaved

LR = 1e-6  # so small that thousands of steps on one batch leave ordinary numbers ordinary
OPTIMIZERS: Mapping[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": partial(torch.optim.SGD, lr=LR),
    "SGD with momentum": partial(torch.optim.SGD, lr=LR, momentum=0.9),
    "AdamW": partial(torch.optim.AdamW, lr=LR),
}
Call = Callable[[], None]


@dataclass(frozen=True)
class Case:
    """A network, how it is trained, and the ratio to plain training that it should not exceed."""

    network: str
    optimizer: str = "SGD"
    target: float | None = None  # None where nothing is promised
    p: float | None = 0.5  # share of units that are absent; None: what `mrreg.thin` takes by default
    k: int = 5  # steps per cycle
    backend: str | None = None  # run all of them under torch.compile with this backend
    cycles: int = 1  # timed at once

    @property
    def name(self) -> str:
        options = ", defaults" if self.p is None else f", p = {self.p}" * (self.p != 0.5)
        options += f", k = {self.k}" * (self.k != 5)
        return f"{self.network}, {self.optimizer}{options}{', compiled' * bool(self.backend)}"


@dataclass(frozen=True)
class Network:
    """How it is built: plain, with nn.Dropout ("dropout"), or as it is trained by us; and its batch."""

    build: Callable[[Case, str], nn.Module]
    inputs: Callable[[], Tensor]


@dataclass(frozen=True)
class SpeedConfig:
    """The cases that are timed; `seeds` is the number of repeats."""

    seeds: int
    cases: tuple[Any, ...]


def runs(config: SpeedConfig) -> list[Run]:
    return [Run(case.name, tuple(range(config.seeds)), case) for case in config.cases]


def ratios(seconds: Mapping[str, float], cycles: int = 1) -> Result:
    """Return the seconds of each way over those of plain training, and those of one cycle of each."""
    found = {way: own / seconds["plain"] for way, own in seconds.items() if way != "plain"}
    return {**found, "seconds": {way: own / cycles for way, own in seconds.items()}}


def training(case: Case, model: nn.Module, inputs: Tensor, *, driven: bool) -> Call:
    """Return a call that trains for the case's steps on one batch; `driven` attaches masks."""
    optimizer = OPTIMIZERS[case.optimizer](model.parameters())
    if driven:
        mrreg.attach(optimizer, model)
    forward: Any = torch.compile(model, backend=case.backend) if case.backend else model

    def call() -> None:
        for _ in range(case.k * case.cycles):
            output = forward(inputs)
            (output if isinstance(output, Tensor) else output[0]).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    return call


def beside_dropout(
    name: str,
    ours: str,
    presets: Mapping[str, SpeedConfig],
    networks: Mapping[str, Network],
    sections: Sequence[Section],
) -> Benchmark[SpeedConfig]:
    """Return the benchmark that times ours and nn.Dropout against plain training."""

    def execute(config: SpeedConfig, run: Run, context: Context) -> list[Result]:
        case: Case = run.options
        torch.compiler.reset()
        torch.manual_seed(0)
        x = networks[case.network].inputs().to(context.device)
        calls = {}
        for way in ("plain", ours, "dropout"):
            torch.manual_seed(0)
            model = networks[case.network].build(case, way).to(context.device)
            calls[way] = training(case, model, x, driven=way == ours)
        timed = interleaved(calls, len(run.seeds), context.device, warmup=2)
        turns = [dict(zip(timed, turn, strict=True)) for turn in zip(*timed.values(), strict=True)]
        return [ratios(turn, case.cycles) for turn in turns]

    return Benchmark(name, presets, runs, execute, tuple(sections))


def below(method: str, name: str, bound: float) -> Values:
    """Return how far a number lies below a bound, one a repeat."""
    return lambda record: [bound - value for value in record.numbers(method, name).values()]


def less(method: str, ours: str, theirs: str) -> Values:
    """Return by how much one ratio of a case is smaller than another, one a repeat."""
    return lambda record: stats.paired(record.numbers(method, theirs), record.numbers(method, ours))


def section(title: str, cases: Sequence[Any], presets: Sequence[str], ours: str, note: str, **more: Any) -> Section:
    """Return the ratios of some cases, and whether they keep what is promised; a `label` shows nn.Dropout as well."""
    labels = {ours: f": {more['label']}" if more.get("label") else ""}
    labels |= {"dropout": ": nn.Dropout"} if more.get("label") else {}
    claims = [
        Claim(f"{case.name}: at most {case.target}", below(case.name, ours, case.target))
        for case in cases
        if case.target is not None
    ]
    return Section(
        "", title, center="median", claims=(*claims, *more.get("claims", ())), note=note,
        rows=tuple(Row(case.name + label, metric(case.name, name)) for case in cases for name, label in labels.items()),
        full=frozenset(presets), presets=frozenset(presets),
    )  # fmt: skip
