"""A study: its runs, the search, who gets how many steps, and trainings of scheduled methods."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.core import runner
from benchmarks.core.comparison import Comparison, Costs, Job, Search, least_loss
from benchmarks.core.records import Record, load
from benchmarks.core.sections import Shown
from benchmarks.core.study import Study, at_best_validation, late


@dataclass(frozen=True)
class Method:
    """The fake clock moves by `cost` at every step; accuracy is `gain` times the steps so far."""

    cost: float = 1.0
    gain: float = 1.0


@dataclass(frozen=True)
class Config:
    seeds: int = 2
    budgets: tuple[int, ...] = (4, 8)


METHODS = {"plain": Method(), "cheap": Method(cost=0.5), "dear": Method(cost=3.0, gain=2.0)}
GRID = {"cheap": [{"gain": 0.5}, {"gain": 1.5}, {"gain": 1.5, "cost": 0.25}]}


@dataclass
class Fake:
    """A trainer with no network, which notes what is done with it."""

    method: Method
    job: Job
    seed: int
    clock: list[float]
    steps: int = 0
    seen: list[tuple[str, int]] = field(default_factory=list)

    def step(self) -> None:
        self.steps += 1
        self.clock[0] += self.method.cost

    def evaluate(self, split: str) -> float:
        self.seen.append((split, self.steps))
        return self.steps * self.method.gain


Made = tuple[Study[Config, Method], list[Fake]]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    """The study, and all trainers that it builds."""
    return study(monkeypatch, costs=Costs("plain", turns=2, cycle=3), search=Search(GRID, like={"dear": "nobody"}))


def study(monkeypatch: pytest.MonkeyPatch, **options: Any) -> Made:
    clock, built = [0.0], list[Fake]()
    monkeypatch.setattr("time.process_time", lambda: clock[0])
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])

    def build(config: Config, method: Method, seed: int, job: Job) -> Fake:
        built.append(Fake(method, job, seed, clock))
        return built[-1]

    def comparisons(config: Config) -> list[Comparison[Method]]:
        return [Comparison(METHODS, config.seeds, config.budgets, setting="here", **options)]

    return Study("toy", {"smoke": Config()}, comparisons, build), built


def record_of(made: Made, folder: Path) -> Record:
    return load(runner.run(made[0].benchmark(), "smoke", folder).path)


def test_runs_are_the_trials_the_timing_and_every_seed_of_every_method(made: Made) -> None:
    keys = [run.key for run in made[0].runs(Config())]
    assert keys[:4] == [
        "search: cheap, gain = 0.5 | seed 1000",
        "search: cheap, gain = 1.5 | seed 1000",
        "search: cheap, gain = 1.5, cost = 0.25 | seed 1000",
        "costs | seed 0",
    ]
    assert keys[4:] == [f"{name} | seed {seed}" for seed in (0, 1) for name in METHODS]


def test_the_best_options_on_validation_data_are_used(made: Made, tmp_path: Path) -> None:
    record = record_of(made, tmp_path)
    trials = [each for each in made[1] if each.job.what == "trial"]
    assert [each.seen for each in trials] == [[("validation", 8)]] * 3
    assert {each.seed for each in trials} == {1000}
    used = {each.method for each in made[1] if each.job.what == "compare" and each.job.name == "cheap"}
    assert used == {Method(cost=0.5, gain=1.5)}  # the first of two equals
    assert record.numbers("cheap", "gain") == {0: 1.5, 1: 1.5}
    assert record.numbers("search: cheap, gain = 0.5", "validation accuracy") == {1000: 4.0}


def test_a_method_takes_what_the_search_has_found_for_another(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    toy = study(monkeypatch, search=Search({"cheap": [{"gain": 0.5}, {"gain": 1.5}]}, like={"dear": "cheap"}))
    record_of(toy, tmp_path)
    assert {each.method.gain for each in toy[1] if each.job.what == "compare"} == {1.0, 1.5}
    assert {each.method for each in toy[1] if each.job.name == "dear"} == {Method(3.0, 1.5)}


def test_everyone_gets_the_steps_and_the_seconds_of_the_baseline(made: Made, tmp_path: Path) -> None:
    record = record_of(made, tmp_path)
    assert {name: record.results("costs")[0][name] for name in METHODS} == {"plain": 1.0, "cheap": 0.5, "dear": 3.0}
    assert record.results("costs")[0]["all"]["dear"] == [3.0, 3.0]
    found = {name: record.results(name)[1] for name in METHODS}
    assert [found[name]["steps at equal seconds"] for name in METHODS] == [8, 16, 3]
    assert [found[name]["relative cost"] for name in METHODS] == [1.0, 0.5, 3.0]
    assert found["dear"]["accuracy by step"] == [8.0, 16.0]
    assert found["dear"]["accuracy by time"] == [2.0, 6.0]
    assert (found["cheap"]["accuracy"], found["cheap"]["accuracy at equal seconds"]) == (12.0, 24.0)
    cheap = next(each for each in made[1] if each.job.name == "cheap" and each.job.what == "compare")
    assert [step for _, step in cheap.seen] == [4, 8, 16]  # one training for both
    assert (cheap.job.steps, cheap.job.setting) == (16, "here")


@pytest.mark.parametrize(("cost", "expected"), [(0.99, 4), (1.01, 4), (1.2, 3), (8.1, 1), (0.8, 5), (1.6, 3)])
def test_a_step_counts_where_half_of_it_fits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cost: float, expected: int
) -> None:
    monkeypatch.setitem(METHODS, "dear", Method(cost=cost))
    toy, built = study(monkeypatch, costs=Costs("plain"))
    short = replace(toy, presets={"smoke": Config(budgets=(4,))})
    assert record_of((short, built), tmp_path).results("dear")[0]["steps at equal seconds"] == expected


def test_steps_may_be_charged_by_other_timings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def charge(name: str, method: Method, step: int) -> str:
        return ("extra" if step < 2 else "plain") if name == "dear" else name

    costs = Costs("plain", also={"extra": Method(cost=0.25)}, charge=charge)
    record = record_of(study(monkeypatch, costs=costs), tmp_path)
    assert record.results("costs")[0].keys() == {"plain", "cheap", "extra", "all"}
    assert record.results("dear")[0]["steps at equal seconds"] == 10  # 0.5 + 8 of 8 seconds: half of the last fits


def test_trials_at_equal_seconds_end_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    toy = study(monkeypatch, costs=Costs("plain"), search=Search({"cheap": [{"gain": 2.0}]}, at="seconds"))
    record_of(toy, tmp_path)
    (trial,) = (each for each in toy[1] if each.job.what == "trial")
    assert trial.seen == [("validation", 16)]


def test_a_scheduled_method_is_trained_once_for_its_steps_and_once_for_its_seconds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    toy = study(monkeypatch, costs=Costs("plain"), scheduled=True)
    record = record_of(toy, tmp_path)
    lengths = {
        name: [each.job.steps for each in toy[1] if each.job.name == name and each.seed == 1] for name in METHODS
    }
    assert lengths == {"plain": [8], "cheap": [8, 16], "dear": [8, 3]}
    assert record.results("dear")[1]["accuracy"] == 16.0
    assert record.results("dear")[1]["accuracy at equal seconds"] == 6.0


def test_the_report_has_rows_claims_and_plots(made: Made, tmp_path: Path) -> None:
    record = record_of(made, tmp_path)
    shown = Shown("Toy", {name: name for name in METHODS}, [("cheap", "plain"), ("plain", "dear")])
    steps, seconds, costs = shown.sections("plain")

    def first(values: Sequence[float]) -> float:
        return values[0]

    assert [first(row.values(record)) for row in steps.rows] == [8.0, 12.0, 16.0]
    assert [first(claim.values(record)) for claim in steps.claims] == [4.0, -8.0]
    assert [first(row.values(record)) for row in seconds.rows] == [8.0, 24.0, 6.0]
    assert [first(row.values(record)) for row in costs.rows] == [1.0, 0.5, 3.0]
    (less, _, _) = replace(shown, lower=True).sections("plain")
    assert [first(claim.values(record)) for claim in less.claims] == [-4.0, 8.0]


def test_the_number_of_a_training_may_be_late() -> None:
    assert late({"accuracy": [1.0, 2.0, 3.0, 4.0, 5.0, 7.0, 8.0, 10.0]}) == {"accuracy": 9.0}


@pytest.mark.parametrize(("name", "best"), [("validation accuracy", 1), ("validation loss", 2)])
def test_the_number_of_a_training_may_be_at_the_best_validation(name: str, best: int) -> None:
    curves = {name: [2.0, 3.0, 1.0, math.nan], "loss": [10.0, 20.0, 30.0, 40.0]}
    assert at_best_validation(curves) == {key: curve[best] for key, curve in curves.items()}


def test_a_watched_trial_keeps_the_best_validation_loss_and_no_test_loss(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    toy, built = study(monkeypatch, search=Search({"cheap": [{"gain": 2.0}]}, score=least_loss),
                       splits=("validation", "test"))  # fmt: skip
    toy = replace(toy, metric="loss", lower=True, summary=at_best_validation)
    record = record_of((toy, built), tmp_path)
    assert record.results("search: cheap, gain = 2")[1000] == {"validation loss": 8.0, "gain": 2.0}
    (trial,) = (each for each in built if each.job.what == "trial")
    assert trial.seen == [("validation", 4), ("validation", 8)]
    assert record.curves("cheap", "validation loss by step")[0] == [8.0, 16.0]
    assert record.numbers("cheap", "loss")[0] == 8.0
