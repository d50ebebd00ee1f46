"""The speed of fine-tuning with a fast head, against full fine-tuning and a loop written by hand.

A timed call is one whole cycle of k steps, each with forward, backward, optimizer step and zero_grad, always on the
same batch; weights are random, since they do not change what a step costs. Full fine-tuning, MultirateSGD and the
hand-written loop (flags and drift, nothing else) take turns in one process, each with its own copy of the network, and
every repeat gives one ratio of each. Before that, `mrreg.audit` predicts what will be measured.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torchvision.models import resnet34, resnet50

import mrreg
from benchmarks.core import stats
from benchmarks.core.records import Record, Result
from benchmarks.core.runner import Benchmark, Context, Run
from benchmarks.core.sections import Claim, Row, Section, Values, metric
from benchmarks.experiments.speed.common import LR, SpeedConfig, above, in_turns, runs

MOMENTUM = 0.9
KS, K = (2, 5, 10), 5  # periods, and that of the loop by hand
HAND = 0.97  # of the hand-written loop's speed, at least
WITHIN = 0.1  # of the measured speed-up, the prediction
TARGET = 2.0  # ResNet-34, float32, k = 5
CLASSES = 10


@dataclass(frozen=True)
class Case:
    """A network, its batch, and the precision of its forward."""

    network: str
    batch: int  # examples a step
    size: int  # pixels along a side, or tokens
    precision: str = "fp32"  # or "bf16" for autocast
    target: float | None = None  # the speed-up at k = 5 that the library promises; None promises nothing

    @property
    def name(self) -> str:
        return f"{self.network}, {self.precision}, batch {self.batch}, size {self.size}"


@dataclass(frozen=True)
class Network:
    """A network: its constructor, the modules of its head, and a batch of its inputs."""

    build: Callable[[], nn.Module]
    head: tuple[str, ...]
    batch: Callable[[Case], Tensor]


def _resnet(build: Callable[..., nn.Module]) -> nn.Module:
    return build(num_classes=CLASSES).to(memory_format=torch.channels_last)


def _images(case: Case) -> Tensor:
    return torch.randn(case.batch, 3, case.size, case.size).contiguous(memory_format=torch.channels_last)


def _encoder(**sizes: Any) -> nn.Module:
    """An encoder for classification as transformers builds it; its default sizes are DistilBERT's."""
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    return DistilBertForSequenceClassification(DistilBertConfig(**{"num_labels": CLASSES} | sizes))


def _tokens(case: Case) -> Tensor:
    return torch.randint(64, (case.batch, case.size))


HEAD = ("pre_classifier", "classifier")
SMALL = {"n_layers": 2, "dim": 16, "hidden_dim": 32, "n_heads": 2, "vocab_size": 64}
NETWORKS = {
    "ResNet-34": Network(partial(_resnet, resnet34), ("fc",), _images),
    "ResNet-50": Network(partial(_resnet, resnet50), ("fc",), _images),
    "DistilBERT-sized encoder": Network(_encoder, HEAD, _tokens),
    "tiny encoder": Network(partial(_encoder, **SMALL), HEAD, _tokens),
}


CPU = (
    Case("ResNet-34", 32, 64, target=TARGET),
    Case("DistilBERT-sized encoder", 4, 32),
    Case("ResNet-34", 4, 32, "bf16"),
    Case("DistilBERT-sized encoder", 1, 8, "bf16"),
)
GPU = tuple(
    Case(network, 64, size, precision)
    for network, size in (("ResNet-34", 224), ("ResNet-50", 224), ("DistilBERT-sized encoder", 128))
    for precision in ("fp32", "bf16")
)
PRESETS = {
    "smoke": SpeedConfig(2, (Case("tiny encoder", 2, 4), Case("tiny encoder", 2, 4, "bf16"))),
    "cpu": SpeedConfig(5, CPU),
    "gpu": SpeedConfig(21, GPU),
}


@dataclass(frozen=True)
class Task:
    """One network and its batch on the device."""

    case: Case
    model: nn.Module
    inputs: Tensor
    labels: Tensor

    @property
    def head(self) -> tuple[str, ...]:
        return NETWORKS[self.case.network].head

    def loss_of(self, output: Any) -> Tensor:
        return cross_entropy(getattr(output, "logits", output).float(), self.labels)

    def autocast(self) -> AbstractContextManager[None]:
        return torch.autocast(self.inputs.device.type, torch.bfloat16, enabled=self.case.precision == "bf16")

    def backward(self) -> None:
        """Forward and backward."""
        with self.autocast():
            loss = self.loss_of(self.model(self.inputs))
        loss.backward()  # type: ignore[no-untyped-call]

    def copy(self) -> "Task":
        return Task(self.case, deepcopy(self.model), self.inputs, self.labels)


def task(case: Case, device: torch.device) -> Task:
    torch.manual_seed(0)
    network = NETWORKS[case.network]
    labels = torch.arange(case.batch) % CLASSES
    return Task(case, network.build().train().to(device), network.batch(case).to(device), labels.to(device))


def steps(task: Task, optimizer: torch.optim.Optimizer, count: int) -> None:
    """Ordinary training."""
    for _ in range(count):
        task.backward()
        optimizer.step()
        optimizer.zero_grad()


def full(task: Task) -> Callable[[], None]:
    """Two steps of full fine-tuning."""
    optimizer = torch.optim.SGD(task.model.parameters(), lr=LR, momentum=MOMENTUM, foreach=True)
    return partial(steps, task, optimizer, 2)


def multirate(task: Task, k: int) -> Callable[[], None]:
    """One cycle of MultirateSGD."""
    optimizer = mrreg.MultirateSGD(task.model, lr=LR, k=k, fast=task.head, momentum=MOMENTUM, foreach=True)
    return partial(steps, task, optimizer, k)


def by_hand(task: Task, k: int) -> Callable[[], None]:
    """One cycle of the shortest loop that does the same."""
    fast, slow = (group["params"] for group in mrreg.split(task.model, fast=task.head))
    head = torch.optim.SGD(fast, lr=LR, momentum=MOMENTUM, foreach=True)
    trunk = torch.optim.SGD(slow, lr=LR, momentum=MOMENTUM, foreach=True)

    def cycle() -> None:
        for t in range(k):
            task.backward()
            head.step()
            if t == 0:
                trunk.step()
                trunk.zero_grad()
            else:
                torch._foreach_add_(slow, [trunk.state[p]["momentum_buffer"] for p in slow], alpha=-LR)
            head.zero_grad()
            if t in (0, k - 1):
                for p in slow:
                    p.requires_grad_(t == k - 1)

    return cycle


def execute(config: SpeedConfig, run: Run, context: Context) -> list[Result]:
    case: Case = run.options
    origin = task(case, context.device)
    with origin.autocast():
        report = mrreg.audit(origin.model, origin.head, origin.inputs, origin.loss_of)
    calls = {"full": full(origin.copy()), f"hand {K}": by_hand(origin.copy(), K)}
    calls |= {f"ours {k}": multirate(origin.copy(), k) for k in KS}
    return [_result(report, each) for each in in_turns(calls, run, context, warmup=1)]


def _result(report: mrreg.Audit, seconds: Mapping[str, float]) -> Result:
    """Return the ratios of one repeat, what was predicted, and the memory of both kinds of step."""
    step = seconds["full"] / 2
    return {
        "seconds": dict(seconds),
        "audit seconds": report["seconds"],
        **{f"speed-up k={k}": k * step / seconds[f"ours {k}"] for k in KS},
        **{f"predicted k={k}": report.speedup(k) for k in KS},
        f"against hand k={K}": seconds[f"hand {K}"] / seconds[f"ours {K}"],
        **{f"MiB {name}": size / 2**20 for name, size in report["bytes"].items()},
    }


def _near(case: Case, k: int) -> Values:
    def values(record: Record) -> list[float]:
        predicted, found = (record.numbers(case.name, f"{what} k={k}") for what in ("predicted", "speed-up"))
        return [WITHIN - abs(predicted[seed] / found[seed] - 1) for seed in found]

    return values


def _claims(case: Case) -> list[Claim]:
    name, target = f"{case.name}, k = ", case.target
    promised = [
        Claim(f"{name}{K}: at least {target} times as fast as full fine-tuning",
              above(case.name, f"speed-up k={K}", target))
    ] if target else []  # fmt: skip
    return [
        *promised,
        Claim(f"{name}{K}: at least {HAND} of a hand-written loop's speed",
              above(case.name, f"against hand k={K}", HAND)),
        *(Claim(f"{name}{k}: predicted within {WITHIN:.0%}", _near(case, k)) for k in KS),
    ]  # fmt: skip


def _facts(cases: tuple[Case, ...], record: Record) -> list[str]:
    """Return the speed against the loop by hand, and the memory of both kinds of step."""
    said = []
    for case in cases:
        if ratios := list(record.numbers(case.name, f"against hand k={K}").values()):
            said.append(f"{case.name}, k = {K}, over the hand-written loop's speed: {stats.spread(ratios, 3)}")
            whole, fast = (next(iter(record.numbers(case.name, f"MiB {kind}").values())) for kind in ("full", "fast"))
            said.append(f"{case.name}: a full step needs {whole:,.1f} MiB, a fast step {fast:,.1f} MiB")
    return said


def _section(preset: str, cases: tuple[Case, ...], note: str) -> Section:
    named = {"times faster than full": "speed-up", "as the audit predicts": "predicted"}
    return Section(
        "", f"Fine-tuning with a fast head against full fine-tuning, {preset.upper()}", center="median",
        rows=tuple(
            Row(f"{case.name}, k = {k}: {label}", metric(case.name, f"{name} k={k}"))
            for case in cases for label, name in named.items() for k in KS
        ),
        claims=tuple(claim for case in cases for claim in _claims(case)),
        full=frozenset({preset}), presets=frozenset({preset}), note=note, facts=partial(_facts, cases),
    )  # fmt: skip


SECTIONS = (
    _section(
        "cpu", CPU,
        "With one thread the seconds are those of the process, which other work on the machine hardly disturbs; with "
        "more they are the clock's. Memory is what autograd keeps plus the gradients, beyond parameters and momentum. "
        "Where the processor has no bfloat16 arithmetic, bf16 is slower than fp32; hence the small batches.",
    ),
    _section("gpu", GPU, "Memory is the peak that the allocator reports beyond the model, without momentum."),
)  # fmt: skip
BENCHMARK = Benchmark("speed finetune", PRESETS, runs, execute, SECTIONS)
