"""Interrupted and resumed in a new process, training goes on bit for bit."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.resume import CASES, END, Run
from torch import Tensor

STOPS = (2, 6)  # every step is interrupted in tests/integration/optim/test_saving.py, within one process


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every run, undisturbed but saved at every step, and finished once more from each of these by another process."""
    folder = tmp_path_factory.mktemp("runs")
    for name in CASES:
        run = Run(name)
        for stop in range(END):
            if stop in STOPS:
                place = folder / name / str(stop)
                place.mkdir(parents=True)
                run.save(place)
            run.train([stop])
        torch.save(run.result(), folder / f"{name}.pt")
    subprocess.run(
        [sys.executable, "-m", "helpers.resume", str(folder)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())},
        check=True,
        timeout=300,
    )
    return folder


def differing(a: Any, b: Any, path: str = "") -> list[str]:
    """Where two nests of plain data and tensors are not the same, bit for bit."""
    if isinstance(a, Tensor):
        return [] if a.dtype == b.dtype and torch.equal(a, b) else [path]
    if isinstance(a, dict):
        if a.keys() != b.keys():
            return [f"{path}: {sorted(map(str, a))} {sorted(map(str, b))}"]
        return [found for key in a for found in differing(a[key], b[key], f"{path}/{key}")]
    if isinstance(a, list) and len(a) == len(b):
        return [found for i, (x, y) in enumerate(zip(a, b, strict=True)) for found in differing(x, y, f"{path}/{i}")]
    return [] if a == b else [f"{path}: {a!r} {b!r}"]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_step_of_two_cycles_in_a_new_process(folder: Path, name: str) -> None:
    undisturbed = torch.load(folder / f"{name}.pt", weights_only=True)
    for stop in STOPS:
        resumed = torch.load(folder / name / str(stop) / "result.pt", weights_only=True)
        assert not differing(undisturbed, resumed), stop


SIZES = {  # tensors of a parameter's size that the base keeps, and those beyond them per slow parameter
    "masks, SGD": (1, 0),
    "thin, AdamW": (3, 0),
    "MultirateSGD": (1, 0),
    "mean gradient": (2, 2),
    "masks and MultirateAdamW": (2, 1),
}


@pytest.mark.parametrize("name", SIZES)
def test_size_of_the_saved_state(name: str) -> None:
    run = Run(name)
    run.train(range(5))
    sizes = {n: p.numel() for n, p in run.model.named_parameters()}
    slow, (buffers, more) = sum(size for n, size in sizes.items() if n.startswith("trunk")), SIZES[name]
    saved = [v for own in run.optimizer.state_dict()["state"].values() for v in own.values() if isinstance(v, Tensor)]
    assert sum(v.numel() for v in run.model.state_dict().values()) == sum(sizes.values())
    assert sum(v.numel() for v in saved if v.dim() > 0) == buffers * sum(sizes.values()) + more * slow
