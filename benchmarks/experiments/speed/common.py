"""What the speed benchmarks share: cases that are timed in turns, and what the report shows of their ratios.

In `masks` and `thin` a timed call is one or more whole cycles: k - 1 masked steps and the joint step, each with
forward, backward, optimizer step and zero_grad. Every repeat times plain training, ours and nn.Dropout one after the
other in one process and gives one ratio of each; the report shows their median, smallest and largest.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

import mrreg
from benchmarks.core import stats
from benchmarks.core.records import Record, Result
from benchmarks.core.runner import Context, Run
from benchmarks.core.sections import Claim, Row, Section, below, metric
from benchmarks.core.timing import interleaved

LR = 1e-6  # so small that thousands of steps on one batch leave ordinary numbers ordinary
Optimizers = Mapping[str, Callable[..., torch.optim.Optimizer]]
OPTIMIZERS: Optimizers = {
    "SGD": partial(torch.optim.SGD, lr=LR),
    "SGD with momentum": partial(torch.optim.SGD, lr=LR, momentum=0.9),
    "AdamW": partial(torch.optim.AdamW, lr=LR),
}
Call = Callable[[], None]


class Case(Protocol):
    """What is timed, and the ratio to plain training that it should not exceed; None where nothing is promised."""

    @property
    def name(self) -> str: ...
    @property
    def target(self) -> float | None: ...


class Cycles(Case, Protocol):
    """A case whose call trains for several cycles by one of `OPTIMIZERS`."""

    @property
    def cycles(self) -> int: ...
    @property
    def optimizer(self) -> str: ...


@dataclass(frozen=True)
class SpeedConfig:
    """The cases that are timed; `seeds` is the number of repeats."""

    seeds: int
    cases: tuple[Any, ...]


def runs(config: SpeedConfig) -> list[Run]:
    """Return one run a case."""
    return [Run(case.name, tuple(range(config.seeds)), case) for case in config.cases]


def in_turns(calls: Mapping[str, Call], run: Run, context: Context, warmup: int) -> dict[str, list[float]]:
    """Return the seconds of every call, one of each a repeat; saved on the way."""
    return interleaved(calls, len(run.seeds), context.device, warmup, checkpoint=context.checkpoint("turns"))


def training(
    model: nn.Module, optimizer: str, inputs: Tensor, steps: int, *, driven: bool, backend: str | None = None
) -> Call:
    """Return a call that trains for some steps on one batch; `driven` attaches masks, a `backend` compiles."""
    stepper = OPTIMIZERS[optimizer](model.parameters())
    if driven:
        mrreg.attach(stepper, model)
    forward: Any = torch.compile(model, backend=backend) if backend else model

    def call() -> None:
        for _ in range(steps):
            output = forward(inputs)
            (output if isinstance(output, Tensor) else output[0]).square().mean().backward()
            stepper.step()
            stepper.zero_grad()

    return call


def beside_dropout(
    ours: Sequence[str], inputs: Callable[[Any], Tensor], trainer: Callable[[Any, str, Tensor], Call]
) -> Callable[[SpeedConfig, Run, Context], list[Result]]:
    """Return the execution of a run: seconds of each of ours and with nn.Dropout over those of plain training."""

    def execute(config: SpeedConfig, run: Run, context: Context) -> list[Result]:
        case: Cycles = run.options
        torch.compiler.reset()
        torch.manual_seed(0)
        x = inputs(case).to(context.device)
        ways = ("plain", *ours, "dropout")
        timed = in_turns({way: trainer(case, way, x) for way in ways}, run, context, warmup=2)
        return [
            {way: own / seconds["plain"] for way, own in seconds.items() if way != "plain"}
            | {"target": case.target, "seconds per cycle": {way: own / case.cycles for way, own in seconds.items()}}
            for seconds in (dict(zip(ways, turn, strict=True)) for turn in zip(*timed.values(), strict=True))
        ]

    return execute


def at_most(case: Case, ratio: str) -> list[Claim]:
    """Return the claim that a case keeps what is promised, if anything is."""
    if case.target is None:
        return []
    return [Claim(f"{case.name}: at most {case.target}", below(case.name, ratio, case.target))]


def section(
    title: str,
    cases: Sequence[Case],
    presets: Sequence[str],
    ours: Mapping[str, str],
    claims: Sequence[Claim],
    note: str,
) -> Section:
    """Return the ratios of some cases; `ours` labels their names in the record, the promised one first."""
    labels = {name: f": {label}" if label else "" for name, label in ours.items()}
    return Section(
        "", title, center="median", claims=tuple(claims), note=note, facts=partial(_medians, cases, ours),
        rows=tuple(Row(case.name + label, metric(case.name, name)) for case in cases for name, label in labels.items()),
        full=frozenset(presets), presets=frozenset(presets),
    )  # fmt: skip


def _medians(cases: Sequence[Case], ours: Mapping[str, str], record: Record) -> list[str]:
    """Return each ratio as one reads timings, and what is wanted of the first."""
    said = []
    for case in cases:
        spreads = [stats.spread(values) for name in ours if (values := list(record.numbers(case.name, name).values()))]
        if spreads:
            wanted = f", wanted {case.target}" if case.target else ""
            rest = "".join(
                f"; {label} {each}" for label, each in zip(list(ours.values())[1:], spreads[1:], strict=True)
            )
            said.append(f"{case.name}: {spreads[0]}{wanted}{rest}")
    return said
