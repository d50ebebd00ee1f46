"""Runs executed one by one, each kept in the record as soon as it is done."""

import math
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from tqdm import tqdm

from benchmarks.core import records
from benchmarks.core.errors import Interrupted, UserError
from benchmarks.core.records import Config, Record, Result
from benchmarks.core.sections import Section, Shown
from benchmarks.core.timing import synchronize

C = TypeVar("C", bound=Config)


@dataclass(frozen=True)
class Run:
    """One method with one seed, or with several seeds that are computed as one batch."""

    method: str  # the name under which the results are found again; unique with the seeds
    seeds: tuple[int, ...] = (0,)  # one seed, or those of the batch
    options: Any = None  # what `execute` needs to know; not kept in the record, since it follows from the configuration

    @property
    def key(self) -> str:
        return f"{self.method} | seed {','.join(map(str, self.seeds))}"


@dataclass(frozen=True)
class Context:
    """The surroundings of a run, for `execute`."""

    device: torch.device  # where to compute
    data_dir: Path | None  # where real data are
    record: Record  # all results so far: a run may choose its settings by what earlier runs (a search) found
    unfinished: Path | None = None  # where a run may keep what it has done so far; None keeps nothing

    def checkpoint(self, part: str) -> Path | None:
        """Return the file of a part of the run under way."""
        return self.unfinished and self.unfinished.with_name(f"{self.unfinished.name}.{part}")


@dataclass(frozen=True)
class Benchmark(Generic[C]):
    """A benchmark is data: configurations, the runs that follow from one, and how one run is executed."""

    name: str  # as on the command line
    presets: Mapping[str, C]  # configurations by name: smoke, cpu, gpu, paper (those that make sense)
    # the runs of a configuration, in the order in which they are worth having. Seeds go in the outer loop, so that a
    # run cut short has compared every method on the same seeds
    runs: Callable[[C], Sequence[Run]]
    # executes one run; returns one result for each of its seeds. Depends on nothing but its arguments: global random
    # state is seeded inside
    execute: Callable[[C, Run, Context], Sequence[Result]]
    sections: tuple[Section, ...] = ()  # what the report shows of it, one a table or figure of the paper
    data: str | Callable[[C], str] = "random tensors"  # on which data a configuration runs, in words
    shown: tuple[Shown, ...] = ()  # comparisons of which the documentation has a row

    def config(self, preset: str, seeds: int | None = None) -> C:
        """The configuration of a preset, with another number of seeds if one is given."""
        if preset not in self.presets:
            raise UserError(f"{self.name}: preset must be one of {', '.join(self.presets)}, got {preset!r}.")
        config = self.presets[preset]
        return config if seeds is None else replace(config, seeds=seeds)

    def data_of(self, config: C) -> str:
        """Return on which data a configuration runs, in words."""
        return self.data if isinstance(self.data, str) else self.data(config)


@dataclass(frozen=True)
class Outcome:
    """The progress of a benchmark."""

    path: Path
    finished: int
    total: int


def run(
    benchmark: Benchmark[C],
    preset: str,
    out: Path,
    *,
    seeds: int | None = None,
    device: str = "cpu",
    data_dir: Path | None = None,
    until: float = math.inf,
    fresh: bool = False,
) -> Outcome:
    """Execute all runs that the record in `out` does not have yet, and write it after each.

    `seeds` replaces the preset's number of them. No run is begun after `until`, a moment of `time.monotonic()`. `fresh`
    begins anew even if the record could be continued.
    """
    config = benchmark.config(preset, seeds)
    where = usable_device(device)
    if data_dir is not None and not data_dir.is_dir():
        raise UserError(f"data-dir must be a folder, got {str(data_dir)!r}, which is not a folder.")
    out.mkdir(parents=True, exist_ok=True)  # that there can be none is said before hours of work, not after
    path = records.path_of(out, benchmark.name, preset)
    record = records.new(benchmark.name, preset, config, where)
    todo = list(benchmark.runs(config))
    record.total = len(todo)
    if path.exists() and not fresh:
        _continue(record, path)
    missing = [each for each in todo if not record.results(each.method).keys() >= set(each.seeds)]
    outcome = Outcome(path, len(todo) - len(missing), len(todo))
    try:
        for _ in _finish(benchmark, config, missing, Context(where, data_dir, record), path, until):
            outcome = replace(outcome, finished=outcome.finished + 1)
    except KeyboardInterrupt as stop:
        kept = f"{outcome.finished} of {outcome.total} runs are kept in {path}"
        raise Interrupted(f"stopped: {kept}. The same command goes on from there.") from stop
    return outcome


def _finish(
    benchmark: Benchmark[C], config: C, missing: Sequence[Run], context: Context, path: Path, until: float
) -> Iterator[Run]:
    """Execute the missing runs, and yield each when it is in the file."""
    name = f"{benchmark.name} {context.record.preset}"
    for each in tqdm(missing, desc=name, disable=None):
        if time.monotonic() > until:
            tqdm.write(f"{name}: stopped at the budget")
            return
        _execute(benchmark, config, each, replace(context, unfinished=_unfinished(path, context.record, each)))
        context.record.save(path)
        _forget_unfinished(path)
        tqdm.write(f"{name}: {each.key}: {context.record.runs[each.key]['seconds']:.1f} s")
        yield each


def _unfinished(path: Path, record: Record, run: Run) -> Path:
    """Return where a run keeps what it has done so far: a name that no run with other settings or other code has."""
    identity = zlib.crc32(repr((run.key, record.identity(), records.revision())).encode())
    return path.with_name(f".{path.stem}.{identity:08x}")


def _forget_unfinished(path: Path) -> None:
    for file in path.parent.glob(f".{path.stem}.*"):
        file.unlink()


def usable_device(name: str) -> torch.device:
    """The device of that name, or a line that says why there is none."""
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UserError(f"device must be one that torch knows, got {name!r}.") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"device must be at hand, got {name!r}: torch sees no CUDA device here.")
    return device


def _execute(benchmark: Benchmark[C], config: C, each: Run, context: Context) -> None:
    synchronize(context.device)
    start = time.perf_counter()
    try:
        results = list(benchmark.execute(config, each, context))
    except ModuleNotFoundError as error:
        raise UserError(f"{benchmark.name}: needs {error.name}. Install it: pip install '.[bench]'") from error
    synchronize(context.device)
    seconds = time.perf_counter() - start
    if len(results) != len(each.seeds):
        raise ValueError(f"{each.key}: execute must return one result a seed, got {len(results)}.")
    context.record.add(each.key, each.method, each.seeds, seconds, results)


def _continue(record: Record, path: Path) -> None:
    """Take over the finished runs of an older record, or put it aside where it was made with other settings."""
    old = records.load(path)
    if difference := record.differs(old):
        aside = path.with_name(f"{path.name}.bak")
        path.replace(aside)
        tqdm.write(f"{path}: begun anew ({difference}); the older record is now {aside.name}")
        return
    record.runs.update(old.runs)
    tqdm.write(f"{path}: continued, {len(old.runs)} runs are in it already (move it away to measure them again)")
