"""A common budget of seconds: who gets how much, and what one failure does to the others."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.toy_benchmark import Execute, Toy, accuracy, counting, named, toy

from benchmarks.core import records, registry, suite
from benchmarks.core import runner as harness
from benchmarks.core.records import Result
from benchmarks.core.runner import Benchmark, Context, Run


class Clock:
    """A clock that moves only when told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        fake = SimpleNamespace(monotonic=lambda: self.now, perf_counter=lambda: self.now)
        monkeypatch.setattr(harness, "time", fake)
        monkeypatch.setattr(suite, "time", fake)

    def taking(self, seconds: float) -> Execute:
        def execute(config: Toy, run: Run, context: Context) -> list[Result]:
            self.now += seconds
            return accuracy(config, run, context)

        return execute


def entry(benchmark: Benchmark[Toy] | None, share: float = 1.0) -> registry.Entry:
    """An entry that gives this benchmark, or breaks down."""

    class Given(registry.Entry):
        def load(self) -> Benchmark[Any]:
            if benchmark is None:
                raise ImportError("no such module")
            return benchmark

    return Given("none", "", share)


def finished(folder: Path) -> dict[str, int]:
    return {path.name.removesuffix("-smoke.json"): len(records.load(path).runs) for path in folder.glob("*.json")}


def test_a_run_that_would_end_too_late_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    outcome = harness.run(toy(clock.taking(10)), "smoke", tmp_path, deadline=25)
    assert (outcome.finished, outcome.total, clock.now) == (2, 4, 20)


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        (None, {"a": 4, "b": 4}),
        (1000, {"a": 4, "b": 4}),
        (40, {"a": 3, "b": 1}),  # shares 3 : 1
        (0, {}),
    ],
)
def test_the_budget_is_shared_most_wanted_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: float | None, expected: dict[str, int]
) -> None:
    run = Clock(monkeypatch).taking(10)
    entries = {"a": entry(named("a", run), share=3), "b": entry(named("b", run))}
    assert suite.run_all(entries, "smoke", tmp_path, budget=budget) == {}
    assert finished(tmp_path) == expected


def test_what_one_does_not_use_goes_to_those_cut_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    entries = {"slow": entry(named("slow", clock.taking(10))), "quick": entry(named("quick", clock.taking(1)))}
    suite.run_all(entries, "smoke", tmp_path, budget=50)
    assert finished(tmp_path) == {"slow": 4, "quick": 4}
    assert clock.now <= 50


def test_a_long_run_begins_when_the_others_leave_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    harness.run(named("long", clock.taking(30)), "smoke", tmp_path, deadline=1)  # one run: how long is known now
    entries = {"long": entry(named("long", clock.taking(30))), "quick": entry(named("quick", clock.taking(1)))}
    suite.run_all(entries, "smoke", tmp_path, budget=40)
    assert finished(tmp_path) == {"long": 2, "quick": 4}


def test_a_failure_is_reported_and_the_rest_goes_on(tmp_path: Path) -> None:
    broken, _ = counting(fail_at=1)
    entries = {"broken": entry(named("broken", broken)), "gone": entry(None), "fine": entry(named("fine", accuracy))}
    failures = suite.run_all(entries, "smoke", tmp_path)
    assert failures == {"broken": "ZeroDivisionError: broke down", "gone": "ImportError: no such module"}
    assert finished(tmp_path) == {"broken": 1, "fine": 4}


def test_a_benchmark_without_the_preset_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = replace(named("other", accuracy), presets={"cpu": Toy()})
    entries = {"other": entry(other), "fine": entry(named("fine", accuracy))}
    assert suite.run_all(entries, "smoke", tmp_path) == {}
    assert finished(tmp_path) == {"fine": 4}
    assert "other: has no preset smoke, left out" in capsys.readouterr().out
