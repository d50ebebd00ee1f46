"""The whole suite within a small budget, and what its GPU presets do differently, as far as a CPU can tell."""

import dataclasses
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.__main__ import main
from benchmarks.core import records
from benchmarks.core import runner as harness
from benchmarks.core.errors import UserError
from benchmarks.core.registry import REGISTERED

BUDGET = 8  # seconds: less than all benchmarks take in their smallest form
SUITE = ("all", "--preset", "smoke", "--device", "cpu", "--budget", str(BUDGET))
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


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["benchmarks", *arguments])
    try:
        main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


@pytest.mark.slow
def test_a_suite_cut_short_leaves_records_that_can_be_continued_and_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, data: Path
) -> None:
    counts = []
    for _ in range(2):
        code = call(monkeypatch, *SUITE, "--data-dir", str(data), "--out", str(tmp_path))
        said = capsys.readouterr().err
        failed = [line for line in said.splitlines() if line.startswith("FAILED")]
        assert all("--data-dir or MRREG_DATA" in line for line in failed), said  # real data that are not here
        assert code == bool(failed)
        assert "Traceback" not in said
        found = records.load_all(tmp_path)
        assert all(0 < len(record.runs) <= record.total for record in found)
        counts.append({record.benchmark: len(record.runs) for record in found})
        assert sum(len(record.runs) == record.total for record in found) < len(REGISTERED)
    first, second = counts
    assert first
    assert all(second[name] >= count for name, count in first.items())
    assert sum(second.values()) > sum(first.values())
    assert call(monkeypatch, "report", "--records", str(tmp_path), "--out", str(tmp_path)) == 0


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
