"""All benchmarks within one budget of seconds."""

import math
import time
import traceback
from collections.abc import Mapping
from pathlib import Path

from benchmarks.core import runner as harness
from benchmarks.core.errors import UserError
from benchmarks.core.registry import Entry


def run_all(
    entries: Mapping[str, Entry],
    preset: str,
    out: Path,
    *,
    budget: float | None = None,
    device: str = "cpu",
    data_dir: Path | None = None,
    seeds: int | None = None,
) -> dict[str, str]:
    """Run benchmarks in their order; what would end after the budget is not begun. Returns why what failed, failed."""
    harness.usable_device(device)
    deadline = time.monotonic() + (math.inf if budget is None else budget)
    failures: dict[str, str] = {}
    for name, entry in entries.items():
        try:
            benchmark = entry.load()
            if preset not in benchmark.presets:
                print(f"{name}: has no preset {preset}, left out")
            elif time.monotonic() < deadline:
                harness.run(benchmark, preset, out, seeds=seeds, device=device, data_dir=data_dir, deadline=deadline)
        except Exception as error:
            if not isinstance(error, UserError):
                traceback.print_exc()
            failures[name] = f"{type(error).__name__}: {error}"
    return failures
