"""What GPU presets do differently, as far as a CPU can tell."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.core import records
from benchmarks.core import runner as harness
from benchmarks.core.registry import REGISTERED


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize("name", ["biases", "patches", "ptb"])
def test_bfloat16_runs_on_a_cpu_too(name: str, data_dir: Path) -> None:
    benchmark = REGISTERED[name].load()
    assert benchmark.presets["gpu"].bfloat16
    config: Any = dataclasses.replace(benchmark.presets["smoke"], bfloat16=True)
    run, device = benchmark.runs(config)[0], torch.device("cpu")
    context = harness.Context(device, data_dir, records.new(name, "smoke", config, device))
    assert len(benchmark.execute(config, run, context)) == len(run.seeds)
