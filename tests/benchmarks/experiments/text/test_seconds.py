"""Equal seconds: costs, budgets, the choice from the map, what the report is told."""

from collections.abc import Mapping

import pytest
import torch

from benchmarks.core.records import Record, new
from benchmarks.experiments.text import seconds as text_seconds
from benchmarks.experiments.text.recipes import Recipe
from benchmarks.experiments.text.seconds import best, relative
from benchmarks.experiments.text.seconds_points import COMPARED, FIRST, POINTS, REST, Point
from benchmarks.experiments.text.seconds_report import BEST, LONG, REFERENCE


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
    runs = list(text_seconds.runs(text_seconds.PRESETS[preset]))
    assert len({run.key for run in runs}) == len(runs)
    measured = set()
    for run in runs:
        if run.method in text_seconds.COSTS:
            measured |= {point.work for point in text_seconds.COSTS[run.method]}
        elif run.options.point != BEST:
            assert POINTS[run.options.point].work in measured


def test_the_cost_of_a_step_is_relative_to_the_reference_and_does_not_depend_on_lr() -> None:
    cheap = Point(Recipe(fast="head"))
    record = made({"costs": {REFERENCE: 4.0, cheap.name: 1.0}})
    assert cheap.name == "AdamW: classifier fast, k = 5"
    same_work = Point(Recipe(fast="head", slow_lr="per_gradient"), rate=2)
    assert relative(record, POINTS[cheap.name]) == relative(record, same_work) == 0.25
    assert relative(record, POINTS[REFERENCE]) == 1
    with pytest.raises(ValueError, match="must have the cost of 'AdamW: classifier fast, k = 3'"):
        relative(record, Point(Recipe(fast="head", k=3)))


def test_the_best_has_two_rates_is_of_the_first_part_and_not_compared_anyway() -> None:
    scores: dict[str, dict[str, object]] = {
        f"map, {point.name}": {"short": 70.0, "middle": 80.0} for point in POINTS.values()
    }
    winner = next(point for point in FIRST if point.recipe.k == 2 and point.recipe.fast == "head")
    scores[f"map, {REFERENCE}"] = {"short": 99.0, "middle": 99.0}
    scores[f"map, {COMPARED[2]}"] = {"short": 97.0, "middle": 97.0}
    scores[f"map, {REST[-1].name}"] = {"short": 98.0, "middle": 98.0}
    scores[f"map, {winner.name}"] = {"short": 69.0, "middle": 82.0}
    assert best(made(scores)) == winner


def test_every_row_and_claim_finds_a_run() -> None:
    numbers: dict[str, dict[str, object]] = {}
    for run in text_seconds.runs(text_seconds.PRESETS["cpu"]):
        numbers[run.method] = (
            {point.name: 1.0 for point in POINTS.values()}
            if run.method in text_seconds.COSTS
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
    methods = [run.method for run in text_seconds.runs(config)]
    for name in (*COMPARED, BEST):
        assert methods.count(name) == methods.count(f"{LONG}{name}") == config.seeds
    assert all(method.startswith(LONG) for method in methods[-config.seeds * (len(COMPARED) + 1) :])
