"""One clock for everything that is timed, and seconds of alternatives that take turns in one process."""

from collections.abc import Callable, Mapping

import torch

from mrreg.auditing.measure import clock


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
