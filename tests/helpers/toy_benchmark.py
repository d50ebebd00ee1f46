"""A benchmark that computes nothing, for tests of what runs it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.core.records import Result
from benchmarks.core.runner import Benchmark, Context, Run


@dataclass(frozen=True)
class Toy:
    seeds: int = 2
    epochs: int = 3
    methods: tuple[str, ...] = ("sgd", "masks")


Execute = Callable[[Toy, Run, Context], Sequence[Result]]


def accuracy(config: Toy, run: Run, context: Context) -> list[Result]:
    return [{"accuracy": seed + config.epochs, "per epoch": [0.1] * config.epochs} for seed in run.seeds]


def toy(execute: Execute = accuracy, **config: Any) -> Benchmark[Toy]:
    def runs(config: Toy) -> list[Run]:
        return [Run(method, (seed,)) for seed in range(config.seeds) for method in config.methods]

    return Benchmark("toy", {"smoke": Toy(**config)}, runs, execute)


def counting(fail_at: int | None = None) -> tuple[Execute, list[str]]:
    """An `execute` that says which runs it was asked for, and may break down at one of them."""
    seen: list[str] = []

    def execute(config: Toy, run: Run, context: Context) -> list[Result]:
        if len(seen) == fail_at:
            raise ZeroDivisionError("broke down")
        seen.append(run.key)
        return accuracy(config, run, context)

    return execute, seen
