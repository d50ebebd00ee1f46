"""The benchmark of `step()`: what it times, and which ratios it holds the library to."""

import math
from pathlib import Path

import pytest
import torch

from benchmarks.core import runner as harness
from benchmarks.core.records import load
from benchmarks.experiments.speed import optimizer as speed_optimizer
from benchmarks.experiments.speed.optimizer import BENCHMARK, PRESETS, SECTION, Case


def test_targets_are_those_that_were_promised() -> None:
    promised = {(case.entries, case.momentum): case.target for case in PRESETS["cpu"].cases}
    assert promised == {(1_000_000, 0.9): 0.7, (100, 0.9): 1.0, (1_000_000, 0.0): 1.5, (100, 0.0): 1.5}
    assert {case.tensors for case in PRESETS["cpu"].cases} == {10, 100}
    assert all(config.seeds >= 5 for name, config in PRESETS.items() if name != "smoke")


def test_parameters_have_the_gradients_of_a_backward_pass() -> None:
    made = speed_optimizer.parameters(Case(3, 7, 0.9, 1.0), torch.device("cpu"))
    assert [p.shape for p in made] == [(7,)] * 3
    assert all(p.grad is not None and p.grad.shape == (7,) for p in made)


def test_a_cycle_is_the_sum_of_its_steps_medians() -> None:
    quiet = [5.0, 1.0, 2.0, 3.0, 4.0]
    disturbed = [5.0, 100.0, 2.0, 3.0, 4.0]
    assert speed_optimizer.cycle(quiet * 2 + disturbed) == 15.0


def test_smoke_record_and_its_sentences(tmp_path: Path) -> None:
    outcome = harness.run(BENCHMARK, "smoke", tmp_path)
    assert outcome.finished == outcome.total == 4
    record = load(outcome.path)
    for case in PRESETS["smoke"].cases:
        ratios = record.numbers(case.name, "ratio")
        assert sorted(ratios) == [0, 1]
        assert all(math.isfinite(ratio) and ratio > 0 for ratio in ratios.values())
    assert [fact.split(":")[0] for fact in SECTION.facts(record)] == [
        "10 tensors of 100 entries, momentum 0.9",
        "10 tensors of 100 entries, momentum 0",
    ]


def test_margin_is_what_is_left_of_the_promise(tmp_path: Path) -> None:
    record = load(harness.run(BENCHMARK, "smoke", tmp_path).path)
    case = next(case for case in PRESETS["cpu"].cases if case.name.startswith("10 tensors of 100 entries"))
    (claim,) = (claim for claim in SECTION.claims if claim.text.startswith(case.name + ":"))
    ratios = record.numbers(case.name, "ratio").values()
    assert claim.values(record) == pytest.approx([case.target - ratio for ratio in ratios])
