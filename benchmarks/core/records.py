"""The record of a benchmark: what was run, with what, and every raw number. Written whole after each finished run."""

import dataclasses
import functools
import json
import math
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch

import mrreg
from benchmarks.core.errors import UserError

SCHEMA = 1
DIGITS = 6  # significant digits kept of each number
ROOT = Path(__file__).parents[2]

Result = Mapping[str, Any]
"""The numbers of one method and seed: plain numbers ("accuracy": 98.3) and curves ("accuracy per epoch": [...])."""


class Config(Protocol):
    """A frozen dataclass; `seeds` is how many seeds are run, everything else is what is run."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def seeds(self) -> int: ...


@dataclasses.dataclass
class Record:
    """All finished runs of one benchmark with one configuration on one device.

    `runs` maps a run's key to its method, seeds, seconds, and one result a seed. `answer` says in sentences what a
    closed question came to; the code that asked it is at the runs' commits.
    """

    benchmark: str
    preset: str
    config: dict[str, Any]
    device: str
    threads: int
    versions: dict[str, str]
    total: int = 0
    answer: list[str] = dataclasses.field(default_factory=list)
    runs: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    schema: int = SCHEMA

    def add(self, key: str, method: str, seeds: tuple[int, ...], seconds: float, results: list[Result]) -> None:
        """Keep one finished run, with when and on which commit it was made."""
        commit, dirty = revision()
        self.runs[key] = {
            "method": method,
            "seeds": list(seeds),
            "seconds": compact(seconds, key),
            "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
            "commit": commit,
            "dirty": dirty,
            "results": compact(results, key),
        }

    def results(self, method: str) -> dict[int, dict[str, Any]]:
        """Every result of a method by seed, in order of the seeds."""
        found = {
            seed: result
            for run in self.runs.values()
            if run["method"] == method
            for seed, result in zip(run["seeds"], run["results"], strict=True)
        }
        return dict(sorted(found.items()))

    def numbers(self, method: str, metric: str) -> dict[int, float]:
        """One number of each result of a method, by seed; what was not finite is nan."""
        found = {seed: result[metric] for seed, result in self.results(method).items() if metric in result}
        return {seed: math.nan if value is None else float(value) for seed, value in found.items()}

    def curves(self, method: str, metric: str) -> dict[int, list[float]]:
        """One list of numbers of each result of a method, by seed; what was not finite is nan."""
        found = {seed: result[metric] for seed, result in self.results(method).items() if metric in result}
        return {seed: [math.nan if y is None else float(y) for y in curve] for seed, curve in found.items()}

    @property
    def seeds(self) -> list[int]:
        return sorted({seed for run in self.runs.values() for seed in run["seeds"]})

    def distinct(self, field: str) -> list[Any]:
        """The different values of a field of the runs ("commit", "date"), sorted."""
        return sorted({run[field] for run in self.runs.values() if run[field] is not None})

    def save(self, path: Path) -> None:
        """Replace the file in one step: a reader, or a crash, never meets half a record."""
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        with temporary.open("w", encoding="utf-8") as file:
            file.write(_layout(dataclasses.asdict(self)))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)

    def differs(self, other: "Record") -> str:
        """Return why the runs of another record cannot continue this one; empty if they can. Seeds are no reason."""
        new, old = self.identity(), other.identity()
        names = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
        return ", ".join(f"{name} {old.get(name)!r} -> {new.get(name)!r}" for name in names)

    def identity(self) -> dict[str, Any]:
        """Return what the runs of a record have in common: settings, versions, device and threads."""
        settings = {name: value for name, value in self.config.items() if name != "seeds"}
        return settings | self.versions | {"device": self.device, "threads": self.threads}


def new(benchmark: str, preset: str, config: Config, device: torch.device) -> Record:
    """An empty record of what is about to be run here."""
    versions = {"python": platform.python_version(), "torch": torch.__version__, "mrreg": mrreg.__version__}
    settings = json.loads(json.dumps(dataclasses.asdict(config)))
    return Record(benchmark, preset, settings, device_name(device), torch.get_num_threads(), versions)


def load(path: Path) -> Record:
    """The record in a file.

    Raises:
        UserError: If the file is no record of this schema.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["schema"] != SCHEMA:
            raise UserError(f"{path}: schema must be {SCHEMA}, got {content['schema']!r}. Move the file away.")
        return Record(**content)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path}: no readable record ({type(error).__name__}: {error}). Move the file away.") from error


def load_all(folder: Path) -> list[Record]:
    """Every record in a folder, by file name.

    Raises:
        UserError: If there is no such folder, or a file in it is no record.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: records must be a folder. Run a benchmark first: python -m benchmarks list")
    return [load(path) for path in sorted(folder.glob("*.json"))]


def path_of(out: Path, benchmark: str, preset: str) -> Path:
    """The file that holds a benchmark's record."""
    return out / f"{benchmark.replace(' ', '-')}-{preset}.json"


def compact(value: Any, where: str) -> Any:
    """Plain Python for JSON: numbers to six significant digits, what is not finite as None."""
    match value:
        case None | bool() | str() | int():
            return value
        case float():
            return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
        case list() | tuple():
            return [compact(item, f"{where}[{index}]") for index, item in enumerate(value)]
        case Mapping():
            return {str(name): compact(item, f"{where}.{name}") for name, item in value.items()}
        case _:
            raise TypeError(f"{where}: a result must be plain Python, got {type(value).__name__}. Call .item() on it.")


def device_name(device: torch.device) -> str:
    """Return the name of a device, in words that stay the same from run to run."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{device.type}: {names[0] if names else platform.processor() or platform.machine()}"


@functools.cache
def revision() -> tuple[str | None, bool | None]:
    """The commit this code is at, and whether code differs from it; read once, when the code is loaded too."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(ROOT), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--", "mrreg", "benchmarks", ":!benchmarks/results")
        return git("rev-parse", "--short=12", "HEAD"), bool(changed)
    except (OSError, subprocess.CalledProcessError):
        print("no git here: the record will name no commit", file=sys.stderr)
        return None, None


def _layout(content: dict[str, Any]) -> str:
    """JSON with one line a run, so that a record is compact and its changes can be read."""
    runs = content.pop("runs")
    head = json.dumps(content, indent=1, allow_nan=False).removesuffix("\n}")
    lines = [f"  {json.dumps(key)}: {json.dumps(run, allow_nan=False)}" for key, run in runs.items()]
    return head + ',\n "runs": {\n' + ",\n".join(lines) + "\n }\n}\n"
