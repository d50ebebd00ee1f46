"""Runs checks on two ranks of a gloo group: one pair of processes for many checks."""

import os
import time
import traceback
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import ProcessExitedException, start_processes

WORLD = 2
PATIENCE = 120  # seconds that a rank waits for the other


def _rank(rank: int, module: str, folder: str) -> None:
    """Run the checks of a module in their order; the file of each says what went wrong."""
    import importlib
    import warnings

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    checks: Mapping[str, Callable[[int], None]] = importlib.import_module(module).CHECKS
    place = f"file://{folder}/rendezvous"
    dist.init_process_group("gloo", place, timedelta(seconds=PATIENCE), world_size=WORLD, rank=rank)
    for name, check in checks.items():
        torch.manual_seed(rank)  # ranks must not rely on a common random state
        try:
            check(rank)
            text = ""
        except Exception:
            text = traceback.format_exc()
        Path(folder, f"{name}.{rank}").write_text(text)
        if text:
            break  # the ranks are out of step now
    else:
        dist.barrier()  # neither leaves while the other needs it
    os._exit(0)  # torch 2.11 sometimes aborts where it takes wrappers apart whose backward pass was refused


def run(module: str, folder: Path, seconds: float = 600) -> None:
    """Run the checks of a module on two ranks; results are read with `outcome`."""
    processes: Any = start_processes(_rank, (module, str(folder)), WORLD, join=False, start_method="spawn")  # type: ignore[no-untyped-call]
    deadline = time.monotonic() + seconds
    try:
        while not processes.join(timeout=5, grace_period=10):
            if time.monotonic() > deadline:
                for process in processes.processes:
                    process.kill()
                break
    except ProcessExitedException as error:  # a crash: the files say how far it came
        Path(folder, "crash").write_text(str(error))


def outcome(folder: Path, name: str) -> str:
    """What went wrong in a check; nothing if it passed on both ranks."""
    files = [folder / f"{name}.{rank}" for rank in range(WORLD)]
    return "\n".join(file.read_text() if file.exists() else f"{file.name}: not finished" for file in files).strip()
