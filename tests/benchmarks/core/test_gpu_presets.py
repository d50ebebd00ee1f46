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


@pytest.mark.slow
@pytest.mark.parametrize("name", ["biases", "patches", "ptb"])
def test_bfloat16_runs_on_a_cpu_too(name: str, tmp_path: Path) -> None:
    benchmark = REGISTERED[name].load()
    assert benchmark.presets["gpu"].bfloat16
    config: Any = dataclasses.replace(benchmark.presets["smoke"], bfloat16=True)
    run, device = benchmark.runs(config)[0], torch.device("cpu")
    data = Path(os.environ.get("MRREG_DATA", tmp_path))  # or an empty one, so that no download is tried
    try:
        results = benchmark.execute(
            config, run, harness.Context(device, data, records.new(name, "smoke", config, device))
        )
    except UserError as error:
        pytest.skip(str(error))
    assert len(results) == len(run.seeds)
