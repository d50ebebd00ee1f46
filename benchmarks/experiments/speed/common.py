"""What the speed benchmarks share: ways to train that are timed in turns, and what is shown of their ratios to plain.

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
from benchmarks.core.records import Result
from benchmarks.core.runner import Context, Run
from benchmarks.core.sections import Claim, Row, Section, Values, metric
from benchmarks.core.timing import interleaved

LR = 1e-6  # so small that thousands of steps on one batch leave ordinary numbers ordinary
OPTIMIZERS: Mapping[str, Callable[..., torch.optim.Optimizer]] = {
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


@dataclass(frozen=True)
class SpeedConfig:
    """The cases that are timed; `seeds` is the number of repeats."""

    seeds: int
    cases: tuple[Any, ...]


def runs(config: SpeedConfig) -> list[Run]:
    return [Run(case.name, tuple(range(config.seeds)), case) for case in config.cases]


def in_turns(calls: Mapping[str, Call], run: Run, context: Context, warmup: int) -> list[dict[str, float]]:
    """Return the seconds of every call, one of each a repeat; saved on the way."""
    timed = interleaved(calls, len(run.seeds), context.device, warmup, checkpoint=context.checkpoint("turns"))
    return [dict(zip(timed, turn, strict=True)) for turn in zip(*timed.values(), strict=True)]


def ratios(seconds: Mapping[str, float], cycles: int = 1) -> Result:
    """Return the seconds of each way over those of plain training, and those of one cycle of each."""
    found = {way: own / seconds["plain"] for way, own in seconds.items() if way != "plain"}
    return {**found, "seconds": {way: own / cycles for way, own in seconds.items()}}


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
    ours: str, inputs: Callable[[Any], Tensor], trainer: Callable[[Any, str, Tensor], Call]
) -> Callable[[SpeedConfig, Run, Context], list[Result]]:
    """Return the execution of a run: seconds of ours and with nn.Dropout over those of plain training."""

    def execute(config: SpeedConfig, run: Run, context: Context) -> list[Result]:
        case = run.options
        torch.compiler.reset()
        torch.manual_seed(0)
        x = inputs(case).to(context.device)
        calls = {way: trainer(case, way, x) for way in ("plain", ours, "dropout")}
        return [ratios(each, case.cycles) for each in in_turns(calls, run, context, warmup=2)]

    return execute


def below(method: str, name: str, bound: float) -> Values:
    """Return how far a number lies below a bound, one a repeat."""
    return lambda record: [bound - value for value in record.numbers(method, name).values()]


def above(method: str, name: str, bound: float) -> Values:
    """Return how far a number lies above a bound, one a repeat."""
    return lambda record: [value - bound for value in record.numbers(method, name).values()]


def less(method: str, ours: str, theirs: str) -> Values:
    """Return by how much one ratio of a case is smaller than another, one a repeat."""
    return lambda record: stats.paired(record.numbers(method, theirs), record.numbers(method, ours))


def section(title: str, cases: Sequence[Case], presets: Sequence[str], ours: str, note: str, **more: Any) -> Section:
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
