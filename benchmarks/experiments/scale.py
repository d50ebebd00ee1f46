"""Data-parallel training: bytes and seconds of one cycle on local ranks.

Every rank count starts its own processes, in which three ways to train one network are timed in turn, cycle by cycle.
Bytes are counted where gradients are handed to `all_reduce`.
"""

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.multiprocessing.spawn import start_processes
from torch.nn.parallel import DistributedDataParallel

import mrreg
from benchmarks.core import stats
from benchmarks.core.records import Record, Result
from benchmarks.core.runner import Benchmark, Context, Run
from benchmarks.core.sections import Claim, Row, Section, Values
from benchmarks.core.timing import interleaved
from mrreg.distributed import reduce_due

K = 5
LR = 1e-3
SGD, ALL, DUE = "SGD", "Multirate, all gradients sent", "Multirate, due gradients sent"
METHODS = (SGD, ALL, DUE)
RANKS = (1, 2)
FLOAT = 4  # bytes of an entry


@dataclass(frozen=True)
class ScaleConfig:
    """The network that is trained, and its batch; `seeds` is the number of timed cycles."""

    seeds: int
    width: int
    depth: int
    batch: int  # examples a rank
    k: int = K
    threads: int = 1  # a rank


PRESETS = {
    "smoke": ScaleConfig(seeds=2, width=16, depth=1, batch=4),
    "cpu": ScaleConfig(seeds=15, width=1024, depth=4, batch=64),
    "gpu": ScaleConfig(seeds=30, width=8192, depth=8, batch=1024),
}


@contextmanager
def counted() -> Iterator[list[int]]:
    """Bytes that this rank hands to all_reduce meanwhile."""
    sent = [0]
    original = dist.all_reduce

    def count(value: Tensor, *args: Any, **kwargs: Any) -> Any:
        sent[0] += value.numel() * value.element_size()
        return original(value, *args, **kwargs)

    dist.all_reduce = count  # type: ignore[assignment]
    try:
        yield sent
    finally:
        dist.all_reduce = original


def network(config: ScaleConfig) -> nn.Sequential:
    torch.manual_seed(0)
    trunk = [layer for _ in range(config.depth) for layer in (nn.Linear(config.width, config.width), nn.ReLU())]
    return nn.Sequential(*trunk, nn.Linear(config.width, 10))


def trainer(method: str, config: ScaleConfig, device: torch.device) -> Callable[[], None]:
    model = network(config).to(device)
    parallel = DistributedDataParallel(model, find_unused_parameters=method != SGD)
    hook: Any = reduce_due if method == DUE else allreduce_hook
    parallel.register_comm_hook(None, hook)
    optimizer: torch.optim.Optimizer = (
        torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
        if method == SGD
        else mrreg.MultirateSGD(parallel, lr=LR, k=config.k, fast=model[-1], momentum=0.9)
    )
    x = torch.randn(config.batch, config.width, device=device)
    y = torch.randint(10, (config.batch,), device=device)

    def cycle() -> None:
        for _ in range(config.k):
            torch.autograd.backward(nn.functional.cross_entropy(parallel(x), y))
            optimizer.step()
            optimizer.zero_grad()

    return cycle


def measure(config: ScaleConfig, repeats: int, device: torch.device) -> list[Result]:
    """Bytes and seconds of every method, one result a repeat; in a process group."""
    cycles = {method: trainer(method, config, device) for method in METHODS}
    sent = {}
    for method, cycle in cycles.items():
        with counted() as size:
            cycle()
        sent[f"{method} bytes"] = size[0]
    seconds = interleaved(cycles, repeats, device, warmup=1, wall=True)  # waiting for others counts
    return [sent | {f"{method} seconds": seconds[method][i] for method in METHODS} for i in range(repeats)]


def work(rank: int, ranks: int, config: ScaleConfig, repeats: int, device: str, folder: str) -> None:
    """Do the work of one process; the first writes the results."""
    torch.set_num_threads(config.threads)
    count = torch.cuda.device_count() if device.startswith("cuda") else 0
    own = torch.device("cuda", rank % count) if count else torch.device("cpu")
    backend = "nccl" if count >= ranks else "gloo"  # nccl wants a GPU for each rank
    place = f"file://{folder}/rendezvous"
    dist.init_process_group(backend, place, timedelta(minutes=5), world_size=ranks, rank=rank)
    results = measure(config, repeats, own)
    if rank == 0:
        Path(folder, "results.json").write_text(json.dumps(results))
    dist.barrier()
    os._exit(0)  # an ordinary end sometimes aborts: threads of gloo still hold futures with Python callbacks


def execute(config: ScaleConfig, run: Run, context: Context) -> list[Result]:
    with tempfile.TemporaryDirectory() as folder:
        arguments = (run.options, config, len(run.seeds), str(context.device), folder)
        start_processes(work, arguments, run.options, start_method="spawn")  # type: ignore[no-untyped-call]
        results: list[Result] = json.loads(Path(folder, "results.json").read_text())
    return results


def called(ranks: int) -> str:
    """The name of a run."""
    return f"{ranks} rank{'s' * (ranks > 1)}"


def runs(config: ScaleConfig) -> list[Run]:
    return [Run(called(ranks), tuple(range(config.seeds)), ranks) for ranks in RANKS]


def counts(config: dict[str, Any]) -> tuple[int, int]:
    """Fast and slow entries of the network of a record."""
    width = config["width"]
    return 10 * (width + 1), config["depth"] * width * (width + 1)


def _ratio(name: str) -> Values:
    """Return a count of plain data parallelism over ours, on two ranks."""

    def values(record: Record) -> list[float]:
        pairs = (record.numbers(called(2), f"{method} {name}").values() for method in (SGD, DUE))
        return [plain / ours for plain, ours in zip(*pairs, strict=True)]

    return values


def _as_counted(record: Record) -> list[float]:
    """Return 1 where exactly the bytes of k |fast| + |slow| entries were sent; else 0 or less."""
    fast, slow = counts(record.config)
    wanted = (record.config["k"] * fast + slow) * FLOAT
    return [1 - abs(sent - wanted) for sent in record.numbers(called(2), f"{DUE} bytes").values()]


def _measured(record: Record) -> list[str]:
    found = []
    for ranks, method in product(RANKS, METHODS):
        sent, seconds = (list(record.numbers(called(ranks), f"{method} {x}").values()) for x in ("bytes", "seconds"))
        if seconds:
            size = f"{sent[0] / 1e6:,.3f} MB a cycle"
            found.append(f"{called(ranks)}, {method}: {size}, seconds: {stats.spread(seconds, 4)}")
    return found


SECTION = Section(
    "", f"Data parallel, {K} steps: SGD over MultirateSGD(k={K}) that sends due gradients only, 2 local ranks",
    unit="x", center="median", full=frozenset({"cpu", "gpu"}),
    rows=(Row("bytes", _ratio("bytes")), Row("seconds", _ratio("seconds"))),
    claims=(
        Claim("a cycle sends k |fast| + |slow| entries, to the byte", _as_counted),
        Claim("and takes less time than SGD's", _ratio("seconds"), above=1.0),
    ),
    note="gloo on one machine, whose ranks share its cores; the head of a network of wide layers is fast. What many "
    "GPUs would save by sending less, the closed record `scale computed` says.",
    facts=_measured,
)  # fmt: skip
BENCHMARK = Benchmark("scale", PRESETS, runs, execute, (SECTION,))
