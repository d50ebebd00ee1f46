"""All benchmarks in their order: what does not fit into the budget is not begun, and one failure does not end it."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.toy_benchmark import Execute, Toy, accuracy, counting, named

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


def entry(benchmark: Benchmark[Toy] | None) -> registry.Entry:
    """An entry that gives this benchmark, or breaks down."""

    class Given(registry.Entry):
        def load(self) -> Benchmark[Any]:
            if benchmark is None:
                raise ImportError("no such module")
            return benchmark

    return Given("none", "")


def finished(folder: Path) -> dict[str, int]:
    return {path.name.removesuffix("-smoke.json"): len(records.load(path).runs) for path in folder.glob("*.json")}


@pytest.mark.parametrize(
    ("budget", "expected"), [(None, {"a": 4, "b": 4}), (65, {"a": 4, "b": 2}), (45, {"a": 4, "b": 1}), (0, {})]
)
def test_what_would_end_after_the_budget_is_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: float | None, expected: dict[str, int]
) -> None:
    run = Clock(monkeypatch).taking(10)
    entries = {name: entry(named(name, run)) for name in ("a", "b")}
    assert suite.run_all(entries, "smoke", tmp_path, budget=budget) == {}
    assert finished(tmp_path) == expected


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
