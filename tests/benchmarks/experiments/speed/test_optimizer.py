"""The benchmark of `step()`: what it times, and which ratios it holds the library to."""

from pathlib import Path

import pytest

from benchmarks.core import runner as harness
from benchmarks.core.records import load
from benchmarks.experiments.speed import optimizer as speed_optimizer
from benchmarks.experiments.speed.optimizer import BENCHMARK, PRESETS, SECTION


def test_a_cycle_is_the_sum_of_its_steps_medians() -> None:
    quiet = [5.0, 1.0, 2.0, 3.0, 4.0]
    disturbed = [5.0, 100.0, 2.0, 3.0, 4.0]
    assert speed_optimizer.cycle(quiet * 2 + disturbed) == 15.0


def test_margin_is_what_is_left_of_the_promise(tmp_path: Path) -> None:
    record = load(harness.run(BENCHMARK, "smoke", tmp_path).path)
    case = next(case for case in PRESETS["cpu"].cases if case.name.startswith("10 tensors of 100 entries"))
    (claim,) = (claim for claim in SECTION.claims if claim.text.startswith(case.name + ":"))
    ratios = record.numbers(case.name, "multirate").values()
    assert claim.values(record) == pytest.approx([case.target - ratio for ratio in ratios])
