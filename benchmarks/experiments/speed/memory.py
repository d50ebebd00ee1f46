"""Peak memory of training ResNet-50 and GPT-2 small: plain, with dropout, and thin.

Each number is of a process of its own: its peak of resident memory in two cycles of five steps of AdamW, without what
it took before there was a network.
"""

import resource
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context

import torch
from torch import Tensor, nn

import mrreg
from benchmarks.core.records import Result
from benchmarks.core.runner import Benchmark, Context, Run
from benchmarks.core.sections import Row, Section, metric
from benchmarks.experiments.speed.thin import mlp

PLAIN, DROPOUT = "plain", "dropout"
THIN: Mapping[str, float | None] = {"thin, defaults": None, "thin, p = 0.5": 0.5}
WAYS = (PLAIN, DROPOUT, *THIN)
STEPS = 10


def resnet50(p: float) -> nn.Module:
    """Build it with Dropout2d after the first two normalizations of each block."""
    from torchvision.models.resnet import Bottleneck, resnet50

    model: nn.Module = resnet50()
    for block in [each for each in model.modules() if p and isinstance(each, Bottleneck)]:
        block.bn1, block.bn2 = (nn.Sequential(norm, nn.Dropout2d(p)) for norm in (block.bn1, block.bn2))
    return model


def gpt2(p: float) -> nn.Module:
    """Build it with its own dropout."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(resid_pdrop=p, embd_pdrop=p, attn_pdrop=p, use_cache=False))


NETWORKS: Mapping[str, tuple[Callable[[float], nn.Module], Callable[[], Tensor]]] = {
    "8-16-16-4": (partial(mlp, widths=(8, 16, 16, 4)), partial(torch.randn, 8, 8)),
    "ResNet-50, 8 images of 160 x 160": (resnet50, partial(torch.randn, 8, 3, 160, 160)),
    "GPT-2 small, 2 texts of 256": (gpt2, partial(torch.randint, 50_257, (2, 256))),
}


@dataclass(frozen=True)
class Config:
    """The networks; `seeds` is the number of processes for each way."""

    seeds: int
    networks: tuple[str, ...]


def peak(network: str, way: str) -> float:
    """Train, and return the largest resident memory of this process so far, without what it began with, in GiB."""

    def resident() -> float:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 2**30

    torch.set_num_threads(1)
    torch.manual_seed(0)
    before = resident()
    build, inputs = NETWORKS[network]
    x, model = inputs(), build(0.1 if way == DROPOUT else 0.0)
    if way in THIN:
        model, _ = mrreg.thin(model, p=THIN[way], k=5, example_inputs=x[:1])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
    if way in THIN:
        mrreg.attach(optimizer, model)
    for _ in range(STEPS):
        output = model(x)
        (output if isinstance(output, Tensor) else output.logits).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return resident() - before


def execute(config: Config, run: Run, context: Context) -> list[Result]:
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
        return [{"GiB": pool.submit(peak, *run.options).result()} for _ in run.seeds]


SECTION = Section(
    "", "Peak memory of training, GiB", rows=tuple(
        Row(f"{network}: {way}", metric(f"{network}: {way}", "GiB")) for network in NETWORKS for way in WAYS
    ), digits=2, better="lower", full=frozenset({"cpu"}), presets=frozenset({"cpu"}),
    note="AdamW, one thread. The peak is that of the joint step, which computes the whole network.",
)  # fmt: skip
BENCHMARK = Benchmark(
    "speed memory",
    {"smoke": Config(1, ("8-16-16-4",)), "cpu": Config(3, tuple(NETWORKS)[1:])},
    lambda config: [
        Run(f"{network}: {way}", tuple(range(config.seeds)), (network, way))
        for network in config.networks
        for way in WAYS
    ],
    execute,
    (SECTION,),
)
