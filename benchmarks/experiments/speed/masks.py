"""Seconds of training with masks against the same network without them, nn.Dropout beside them.

A timed call is one or more whole cycles: k - 1 masked steps and the joint step, each with forward, backward, optimizer
step and zero_grad. Every repeat times plain, masked and dropout one after the other in one process and gives one ratio
of each; the report shows their median, smallest and largest.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

import mrreg
from benchmarks.core import stats
from benchmarks.core.records import Record, Result
from benchmarks.core.runner import Benchmark, Context, Run
from benchmarks.core.sections import Claim, Row, Section, Values, below, metric
from benchmarks.core.timing import interleaved

K = 5
LR = 1e-6  # so small that thousands of steps on one batch leave ordinary numbers ordinary
SEQUENCE = 35  # words, as in language models on Penn Treebank
WAYS = ("plain", "masked", "dropout")

Optimizers = Mapping[str, Callable[..., torch.optim.Optimizer]]
OPTIMIZERS: Optimizers = {
    "SGD": partial(torch.optim.SGD, lr=LR),
    "SGD with momentum": partial(torch.optim.SGD, lr=LR, momentum=0.9),
    "AdamW": partial(torch.optim.AdamW, lr=LR),
}


@dataclass(frozen=True)
class Case:
    """A network, how it is trained, and the ratio to plain training that the library promises not to exceed.

    Args:
        network: One of `NETWORKS`.
        batch: Examples a step (for "encoder": sequences).
        target: Seconds with masks over seconds without, at most; None promises nothing.
        optimizer: One of `OPTIMIZERS`.
        compiled: Run all of them under torch.compile.
        cycles: How many cycles are timed at once.
    """

    network: str
    batch: int
    target: float | None
    optimizer: str = "SGD"
    compiled: bool = False
    cycles: int = 1

    @property
    def name(self) -> str:
        return f"{self.network}, batch {self.batch}, {self.optimizer}{', compiled' if self.compiled else ''}"


@dataclass(frozen=True)
class SpeedConfig:
    """The cases that are timed; `seeds` is the number of repeats."""

    seeds: int
    cases: tuple[Case, ...]


def classifier(way: str, widths: tuple[int, int, int] = (784, 800, 10)) -> nn.Module:
    """One hidden layer; masks and dropout with the shares of the paper's MNIST experiment."""
    first, second = nn.Linear(*widths[:2]), nn.Linear(*widths[1:])
    if way == "masked":
        return nn.Sequential(mrreg.MultirateMask(first, p=0.2, k=K), nn.ReLU(), mrreg.MultirateMask(second, p=0.5, k=K))
    if way == "dropout":
        return nn.Sequential(nn.Dropout(0.2), first, nn.ReLU(), nn.Dropout(0.5), second)
    return nn.Sequential(first, nn.ReLU(), second)


def pair(way: str, widths: tuple[int, int, int]) -> nn.Module:
    """Two layers that drop half of the units between them."""
    first, second = nn.Linear(*widths[:2]), nn.Linear(*widths[1:])
    if way == "dropout":
        return nn.Sequential(first, nn.ReLU(), nn.Dropout(0.5), second)
    plain = nn.Sequential(first, nn.ReLU(), second)
    return mrreg.MultirateMask(plain, p=0.5, k=K, structure="hidden") if way == "masked" else plain


def encoder(way: str, width: int, p: float, structure: Literal["weight", "hidden"]) -> nn.Module:
    """Two Transformer layers: dropout where they have it, or masks on all weights or on the feed-forward half alone."""
    dropout = p if way == "dropout" else 0.0
    layers = [nn.TransformerEncoderLayer(width, 2, width, dropout, batch_first=True) for _ in range(2)]
    if way == "masked":
        return nn.Sequential(*(mrreg.MultirateMask(layer, p=p, k=K, structure=structure) for layer in layers))
    return nn.Sequential(*layers)


@dataclass(frozen=True)
class Network:
    """A network: built plain, masked or with dropout; the shape of one example's input, and the compiler's backend."""

    build: Callable[[str], nn.Module]
    example: tuple[int, ...]
    backend: str = "inductor"


NETWORKS = {
    "784-800-10": Network(classifier, (784,)),
    "2 encoder layers of 200": Network(partial(encoder, width=200, p=0.2, structure="weight"), (SEQUENCE, 200)),
    "784-800-784 hidden": Network(partial(pair, widths=(784, 800, 784)), (784,)),
    "512-2048-512 hidden": Network(partial(pair, widths=(512, 2048, 512)), (512,)),
    "2 encoder layers of 200 hidden": Network(partial(encoder, width=200, p=0.5, structure="hidden"), (SEQUENCE, 200)),
    "4-8-4 hidden": Network(partial(pair, widths=(4, 8, 4)), (4,), backend="aot_eager"),
}

WEIGHTS = (
    Case("784-800-10", 128, 1.40, cycles=10),
    Case("784-800-10", 512, 1.25, cycles=3),
    Case("2 encoder layers of 200", 20, 1.10),
    Case("784-800-10", 128, 1.50, "SGD with momentum", cycles=10),
    Case("784-800-10", 128, 1.50, "AdamW", cycles=10),
    Case("784-800-10", 128, 1.25, compiled=True, cycles=10),
    Case("784-800-10", 512, 1.25, compiled=True, cycles=3),
)
COMPACT = (
    Case("784-800-784 hidden", 512, 0.75),
    Case("512-2048-512 hidden", 2048, 0.70),
    Case("2 encoder layers of 200 hidden", 20, 1.0),
    Case("784-800-784 hidden", 512, None, compiled=True),
)
GPU = tuple(
    Case(network, batch, None, optimizer, compiled, cycles=10)
    for compiled in (False, True)
    for network, batch, optimizer in [
        ("784-800-10", 128, "SGD"),
        ("784-800-10", 512, "SGD"),
        ("784-800-10", 128, "SGD with momentum"),
        ("784-800-10", 128, "AdamW"),
        ("2 encoder layers of 200", 20, "SGD"),
        ("784-800-784 hidden", 512, "SGD"),
        ("512-2048-512 hidden", 2048, "SGD"),
        ("512-2048-512 hidden", 32768, "SGD"),
        ("2 encoder layers of 200 hidden", 20, "SGD"),
    ]
)
SMOKE = (
    Case("784-800-10", 8, None),
    Case("4-8-4 hidden", 8, None, "AdamW"),
    Case("4-8-4 hidden", 8, None, compiled=True),
)
PRESETS = {"smoke": SpeedConfig(2, SMOKE), "cpu": SpeedConfig(25, WEIGHTS + COMPACT), "gpu": SpeedConfig(21, GPU)}


def trainer(case: Case, way: str, features: Tensor) -> Callable[[], None]:
    """A call that trains for the cycles of a case."""
    torch.manual_seed(0)
    model = NETWORKS[case.network].build(way).to(features.device)
    optimizer = OPTIMIZERS[case.optimizer](model.parameters())
    if way == "masked":
        mrreg.attach(optimizer, model)
    backend = NETWORKS[case.network].backend
    forward = torch.compile(model, backend=backend) if case.compiled else model

    def call() -> None:
        for _ in range(K * case.cycles):
            forward(features).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    return call


def execute(config: SpeedConfig, run: Run, context: Context) -> list[Result]:
    case: Case = run.options
    torch.compiler.reset()
    torch.manual_seed(0)
    features = torch.randn(case.batch, *NETWORKS[case.network].example, device=context.device)
    timed = interleaved({way: trainer(case, way, features) for way in WAYS}, len(run.seeds), context.device, warmup=2)
    return [
        {
            "masked": masked / plain,
            "dropout": dropout / plain,
            "target": case.target,
            "seconds per cycle": {"plain": plain / case.cycles, "masked": masked / case.cycles,
                                  "dropout": dropout / case.cycles},
        }
        for plain, masked, dropout in zip(*(timed[way] for way in WAYS), strict=True)
    ]  # fmt: skip


def runs(config: SpeedConfig) -> list[Run]:
    return [Run(case.name, tuple(range(config.seeds)), case) for case in config.cases]


def _below_dropout(case: Case) -> Values:
    def values(record: Record) -> list[float]:
        masked, dropout = record.numbers(case.name, "masked"), record.numbers(case.name, "dropout")
        return [dropout[seed] - masked[seed] for seed in masked]

    return values


def _medians(cases: tuple[Case, ...], record: Record) -> list[str]:
    """Each ratio as one reads timings: median, smallest and largest."""
    said = []
    for case in cases:
        masked, dropout = (list(record.numbers(case.name, way).values()) for way in ("masked", "dropout"))
        if masked:
            wanted = f", wanted {case.target}" if case.target else ""
            said.append(f"{case.name}: {stats.spread(masked)}{wanted}; nn.Dropout {stats.spread(dropout)}")
    return said


def _section(title: str, cases: tuple[Case, ...], preset: str, note: str) -> Section:
    ways = {"masked": "masks", "dropout": "nn.Dropout"}
    claims = [
        *(
            Claim(f"{case.name}: at most {case.target}", below(case.name, "masked", case.target))
            for case in cases
            if case.target
        ),
        *(
            Claim(f"{case.name}: masks cost less than nn.Dropout", _below_dropout(case))
            for case in cases
            if case.target and case.optimizer == "SGD"
        ),
    ]
    return Section(
        "",
        title,
        center="median",
        rows=tuple(
            Row(f"{case.name}: {label}", metric(case.name, way)) for case in cases for way, label in ways.items()
        ),
        claims=tuple(claims),
        full=frozenset({preset}),
        presets=frozenset({preset}),
        note=note,
        facts=partial(_medians, cases),
    )


SECTIONS = (
    _section(
        f"Seconds of training with weight masks (k = {K}) over plain training, CPU",
        WEIGHTS,
        "cpu",
        "Weight masks compute everything and cost a little; below 1 would be faster than plain.",
    ),
    _section(
        f"Seconds of training with compact masks (k = {K}, half of the hidden units) over plain training, CPU",
        COMPACT,
        "cpu",
        "Masks of whole units leave the dropped units out of the computation; below 1 they are faster than plain.",
    ),
    _section(
        f"Seconds of training with masks (k = {K}) over plain training, GPU",
        GPU,
        "gpu",
        "Nothing is promised here; the networks named hidden have compact masks, the others weight masks.",
    ),
)

BENCHMARK = Benchmark("speed masks", PRESETS, runs, execute, SECTIONS)
