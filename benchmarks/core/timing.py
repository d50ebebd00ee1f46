"""One clock for everything that is timed, and seconds of alternatives that take turns in one process."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from benchmarks.core.checkpoints import Checkpoint, Kept


def clock(device: torch.device, *, wall: bool = False) -> Callable[[], float]:
    """Return a clock for work on a device, which is waited for before the clock is read.

    With one CPU thread it counts the seconds of this process, which other processes hardly disturb, unless `wall`
    asks for those that pass.
    """
    if device.type == "cpu":
        return time.process_time if torch.get_num_threads() == 1 and not wall else time.perf_counter

    def synchronized() -> float:
        synchronize(device)
        return time.perf_counter()

    return synchronized


def interleaved(
    cases: Mapping[str, Callable[[], object]],
    repeats: int,
    device: torch.device,
    warmup: int = 3,
    *,
    wall: bool = False,
    checkpoint: Path | None = None,
) -> dict[str, list[float]]:
    """Return the seconds of every call of every case, the cases in turns, after `warmup` calls that do not count.

    A timing that was cut short goes on from the file `checkpoint`, warmed up again; None begins anew.
    """
    seconds = Kept({name: [] for name in cases})
    saved = Checkpoint(checkpoint, {"seconds": seconds})
    saved.load()
    now = clock(device, wall=wall)
    begun = len(next(iter(seconds.values())))
    for turn in range(begun - warmup, repeats) if begun < repeats else ():
        for name, call in cases.items():
            start = now()
            call()
            if turn >= begun:
                seconds[name].append(now() - start)
        if saved.due():
            saved.save()
    return dict(seconds)


def synchronize(device: torch.device) -> None:
    """Wait for the device, so that a clock read next is right."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
