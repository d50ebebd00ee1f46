"""What GPU presets do differently, as far as a CPU can tell."""

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.core import records
from benchmarks.core import runner as harness
from benchmarks.core.errors import UserError
from benchmarks.core.registry import REGISTERED

SWITCHED = [
    (name, field.name)
    for name, entry in REGISTERED.items()
    if "gpu" in (presets := entry.load().presets)
    for field in dataclasses.fields(presets["gpu"])
    if getattr(presets["gpu"], field.name) is True and getattr(presets["smoke"], field.name) is False
]  # what is on for a GPU and off in the smallest form: bfloat16, all seeds in one batch


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The folder with real data, or an empty one, so that no download is tried."""
    empty = tmp_path / "no data"
    empty.mkdir()
    return Path(os.environ.get("MRREG_DATA", empty))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "switch"), SWITCHED)
def test_what_only_a_gpu_preset_switches_on_runs_on_a_cpu_too(name: str, switch: str, data: Path) -> None:
    benchmark = REGISTERED[name].load()
    config: Any = dataclasses.replace(benchmark.presets["smoke"], **{switch: True})
    run = benchmark.runs(config)[0]
    device = torch.device("cpu")
    context = harness.Context(device, data, records.new(name, "smoke", config, device))
    try:
        results = benchmark.execute(config, run, context)
    except UserError as error:
        pytest.skip(str(error))
    assert len(results) == len(run.seeds)


@pytest.mark.parametrize("name", [name for name, entry in REGISTERED.items() if "gpu" in entry.load().presets])
def test_gpu_runs_have_names_of_their_own(name: str) -> None:
    benchmark = REGISTERED[name].load()
    keys = [run.key for run in benchmark.runs(benchmark.presets["gpu"])]
    assert keys
    assert len(set(keys)) == len(keys)
