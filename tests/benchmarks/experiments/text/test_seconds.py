"""Equal seconds: costs, budgets, the choice from the map, what the report is told."""

from collections.abc import Mapping

import pytest
import torch

from benchmarks.core.records import Record, new
from benchmarks.experiments.text import seconds as text_seconds
from benchmarks.experiments.text.recipes import Recipe
from benchmarks.experiments.text.seconds import (
    BEST,
    COMPARED,
    FIRST,
    LONG,
    POINTS,
    REFERENCE,
    REST,
    Point,
    candidates,
    costs,
)


def made(numbers: Mapping[str, Mapping[str, object]]) -> Record:
    record = new("text-seconds", "cpu", text_seconds.PRESETS["cpu"], torch.device("cpu"))
    for method, result in numbers.items():
        record.add(method, method, (0,), 1.0, [result])
    return record


def test_points_have_names_of_their_own() -> None:
    assert len(POINTS) == len(FIRST) + len(REST)
    assert Point(Recipe(), "SGD", rate=2, batch=0.5).name == "SGD: full fine-tuning, lr x 2, batch x 0.5"


@pytest.mark.parametrize("preset", text_seconds.PRESETS)
def test_runs_are_distinct_and_costs_come_before_what_needs_them(preset: str) -> None:
    runs = text_seconds.STUDY.runs(text_seconds.PRESETS[preset])
    assert len({run.key for run in runs}) == len(runs)
    measured: dict[str, set[str]] = {}
    for run in runs:
        costs = run.options.comparison.costs
        if run.options.what == "costs":
            measured[run.method] = set(costs.also)
        for name, point in run.options.comparison.methods.items():
            assert costs.charge(name, point, 0) in measured[costs.name]


def test_points_that_differ_in_step_sizes_alone_share_a_timing() -> None:
    points = (Point(Recipe(fast="head")), Point(Recipe(fast="head", slow_lr="per_gradient"), rate=2))
    timing = costs(text_seconds.PRESETS["cpu"], "costs", points)
    assert set(timing.also) == {REFERENCE, "AdamW: classifier fast, k = 5"}
    assert [timing.charge("", point, 0) for point in points] == ["AdamW: classifier fast, k = 5"] * 2


def test_the_best_is_multirate_of_the_first_part_and_not_compared_anyway() -> None:
    scores: dict[str, dict[str, object]] = {
        f"map, {point.name}": {"short": 70.0, "middle": 80.0} for point in POINTS.values()
    }
    winner = next(point for point in FIRST if point.recipe.k == 2 and point.recipe.fast == "head")
    scores[f"map, {REFERENCE}"] = {"short": 99.0, "middle": 99.0}
    scores[f"map, {COMPARED[2]}"] = {"short": 97.0, "middle": 97.0}
    scores[f"map, {REST[-1].name}"] = {"short": 98.0, "middle": 98.0}
    scores[f"map, {winner.name}"] = {"short": 69.0, "middle": 82.0}
    assert candidates(FIRST).chosen(made(scores), BEST) == {"recipe": winner.recipe}
    assert candidates(FIRST[:1]).chosen(made({}), BEST) == {}


def test_every_row_and_claim_finds_a_run() -> None:
    numbers: dict[str, dict[str, object]] = {}
    for run in text_seconds.STUDY.runs(text_seconds.PRESETS["cpu"]):
        numbers[run.method] = (
            {point.name: 1.0 for point in POINTS.values()}
            if run.options.what == "costs"
            else {"equal seconds": 1.0, "equal epochs": 1.0, "short": 1.0, "middle": 1.0, "relative cost": 1.0}
        ) | {"recipe": "x"}
    record = made(numbers)
    for section in text_seconds.BENCHMARK.sections:
        assert all(row.values(record) for row in section.rows), section.title
        assert all(claim.values(record) for claim in section.claims), section.title
        if section.claims:
            assert any("paired" in fact for fact in section.facts(record))


def test_the_comparison_is_paired_and_the_long_one_comes_last() -> None:
    config = text_seconds.PRESETS["cpu"]
    methods = [run.method for run in text_seconds.STUDY.runs(config)]
    for name in (*COMPARED, BEST):
        assert methods.count(name) == methods.count(f"{LONG}{name}") == config.seeds
    assert all(method.startswith(LONG) for method in methods[-config.seeds * (len(COMPARED) + 1) :])
