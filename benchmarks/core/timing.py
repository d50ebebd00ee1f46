"""One clock for everything that is timed, and seconds of alternatives that take turns in one process."""

import time
from collections.abc import Callable, Mapping

import torch


def clock(device: torch.device) -> Callable[[], float]:
    """Return a clock for work on a device, which is waited for before the clock is read.

    With one CPU thread it counts the seconds of this process, which other processes hardly disturb.
    """
    if device.type == "cpu":
        return time.process_time if torch.get_num_threads() == 1 else time.perf_counter

    def synchronized() -> float:
        synchronize(device)
        return time.perf_counter()

    return synchronized


def interleaved(
    cases: Mapping[str, Callable[[], object]], repeats: int, device: torch.device, warmup: int = 3
) -> dict[str, list[float]]:
    """Return the seconds of every call of every case, the cases in turns, after `warmup` calls that do not count."""
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    now = clock(device)
    for turn in range(-warmup, repeats):
        for name, call in cases.items():
            start = now()
            call()
            if turn >= 0:
                seconds[name].append(now() - start)
    return seconds


def synchronize(device: torch.device) -> None:
    """Wait for the device, so that a clock read next is right."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
