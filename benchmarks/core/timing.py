"""Seconds of alternatives, interleaved in one process so that the machine's moods meet all of them alike."""

import time
from collections.abc import Callable, Mapping

import torch


def interleaved(
    cases: Mapping[str, Callable[[], object]], repeats: int, device: torch.device, warmup: int = 3
) -> dict[str, list[float]]:
    """Seconds of every call of every case, after `warmup` calls of each that are not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for repeat in range(warmup + repeats):
        for name, call in cases.items():
            synchronize(device)
            start = time.perf_counter()
            call()
            synchronize(device)
            if repeat >= warmup:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def synchronize(device: torch.device) -> None:
    """Wait for the device, so that a clock read next is right."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
