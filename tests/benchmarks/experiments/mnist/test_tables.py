"""The MNIST benchmarks as data: runs, choices made from a record, what the report is told."""

from typing import Any

import pytest
import torch

from benchmarks.core.records import Record, new
from benchmarks.core.runner import Benchmark
from benchmarks.experiments.mnist import search as mnist_search
from benchmarks.experiments.mnist import small as mnist_small
from benchmarks.experiments.mnist import tables as mnist
from benchmarks.experiments.mnist.search import READINGS, TABLE, distance, facts, phases
from benchmarks.experiments.mnist.small import METHODS, search
from benchmarks.experiments.mnist.training import Method

ALL: list[Benchmark[Any]] = [mnist.BENCHMARK, mnist_search.BENCHMARK, mnist_small.BENCHMARK]


def record(benchmark: Benchmark[Any], numbers: dict[str, dict[str, float]], preset: str = "cpu") -> Record:
    """A record in which each method has one result."""
    made = new(benchmark.name, preset, benchmark.presets[preset], torch.device("cpu"))
    for method, result in numbers.items():
        made.add(method, method, (0,), 1.0, [result])
    return made


@pytest.mark.parametrize("benchmark", ALL, ids=lambda each: each.name)
def test_runs_of_every_preset_are_distinct_and_cover_all_seeds(benchmark: Benchmark[Any]) -> None:
    assert {"smoke", "cpu", "gpu", "paper"} <= benchmark.presets.keys()
    for config in benchmark.presets.values():
        runs = list(benchmark.runs(config))
        assert len({run.key for run in runs}) == len(runs)
        assert {seed for run in runs for seed in run.seeds} >= set(range(config.seeds))


@pytest.mark.parametrize("benchmark", ALL, ids=lambda each: each.name)
def test_every_row_and_plot_names_a_method_that_is_run(benchmark: Benchmark[Any]) -> None:
    for section in benchmark.sections:
        preset = next(iter(section.presets or {"cpu"}))
        known = {run.method for run in benchmark.runs(benchmark.presets[preset])}
        for plot in section.plots:
            assert set(getattr(plot, "methods", {}).values()) <= known
        probe = record(benchmark, {name: {"accuracy": 1.0, "final": 1.0, "best": 1.0} for name in known})
        if section.item:
            assert all(row.values(probe) for row in section.rows)
            assert all(claim.values(probe) for claim in section.claims)


def test_masks_of_the_tables() -> None:
    assert [mnist.METHODS[f"masks, k = {k}"].k for k in TABLE] == [3, 5, 10]
    assert [mnist.METHODS[name].boost for name in mnist.H_S] == [2, None, 8, 10]  # h_S / h_F, None is k
    assert all(
        method.p == mnist.KEPT for name, method in mnist.METHODS.items() if "at zero" not in name and method != Method()
    )


def test_readings_differ_in_what_their_names_say() -> None:
    assert len(set(READINGS.values())) == len(READINGS)
    longer = READINGS["0.8/0.5 at zero, momentum 0.9, batch 128, cycle k + 1"].method(3)
    assert (longer.p, longer.k, longer.boost) == ((0.8, 0.5), 4, 3)
    kept = READINGS["0.8/0.5 kept, momentum 0, batch 64"].method(5)
    assert (kept.p, kept.k, kept.boost) == ((0.2, 0.5), 5, 5)


def test_the_nearest_reading_is_found() -> None:
    near, far = list(READINGS)[:2]
    numbers = {
        f"{name} | k = {k}": {"final": paper.mean - off, "best": 0.0, "final, as left": 0.0}
        for name, off in ((near, 0.5), (far, 2.0))
        for k, paper in TABLE.items()
    }
    made = record(mnist_search.BENCHMARK, numbers)
    assert distance(made, near, "final") == pytest.approx(0.5)
    found = facts(made)
    assert found[0].startswith(f"Nearest to all of the table: {near}; final epoch")
    assert "75.66 / 97.80 / 97.72" in found[0]
    assert "0.50 points" in found[0]


def test_an_epoch_of_128_ends_with_the_mask_on_at_3_only() -> None:
    steps = -(-60_000 // 128)
    assert [steps % k for k in (3, 5, 10)] == [1, 4, 9]
    assert "among them: 128." in phases()[0]


@pytest.mark.parametrize("count", [2, 3])
def test_every_method_gets_as_many_trials(count: int) -> None:
    grid = search(1000, list(METHODS), count).grid
    assert grid.keys() == METHODS.keys() - {"SGD"}
    assert {len(tried) for tried in grid.values()} == {count}


def test_p_is_chosen_on_the_validation_split() -> None:
    tuned = search(1000, list(METHODS), 3)
    trials = [tuned.trial("dropout", options) for options in tuned.grid["dropout"]]
    scores = dict(zip(trials, (90.0, 92.0, 92.0), strict=True))
    made = record(mnist_small.BENCHMARK, {trial: {"validation accuracy": score} for trial, score in scores.items()})
    assert trials[1] == "tuning 1000: dropout, p = 0.5/0.5"
    assert tuned.chosen(made, "dropout") == {"p": (0.5, 0.5)}
    assert tuned.chosen(made, "SGD") == {}
    assert search(5000, list(METHODS), 3).chosen(made, "dropout") == {"p": (0.2, 0.5)}
