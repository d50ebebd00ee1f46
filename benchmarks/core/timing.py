"""One clock for everything that is timed, and seconds of alternatives that take turns in one process."""

import time
from collections.abc import Callable, Mapping

import torch


def clock(device: torch.device) -> Callable[[], float]:
    """Return a clock for work on a device; with one CPU thread it counts time of the process, undisturbed by others."""
    if device.type == "cpu":
        return time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    return lambda: torch.accelerator.synchronize(device) or time.perf_counter()  # type: ignore[func-returns-value]


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
