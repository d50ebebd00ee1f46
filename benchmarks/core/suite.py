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
    """Run benchmarks in their order, each within its share of what is left; what one does not use goes to the rest.

    When all had their turn and seconds are left, those that were cut short go on. Returns why what failed, failed.
    """
    harness.usable_device(device)
    end = math.inf if budget is None else time.monotonic() + budget
    failures: dict[str, str] = {}
    waiting, progress = dict(entries), True
    while waiting and progress and time.monotonic() < end:
        turn, waiting, progress = waiting, {}, False
        for name, entry in turn.items():
            rest = sum(other.share for other in list(turn.values())[list(turn).index(name) :])
            now = time.monotonic()
            deadline = None if end == math.inf else now + (end - now) * entry.share / rest
            try:
                benchmark = entry.load()
                if preset not in benchmark.presets:
                    print(f"{name}: has no preset {preset}, left out")
                    continue
                outcome = harness.run(
                    benchmark, preset, out, seeds=seeds, device=device, data_dir=data_dir, deadline=deadline
                )
            except Exception as error:
                if not isinstance(error, UserError):
                    traceback.print_exc()
                failures[name] = f"{type(error).__name__}: {error}"
            else:
                progress |= outcome.added > 0
                waiting |= {name: entry} if outcome.finished < outcome.total else {}
    return failures
