"""The one clock, and alternatives that take turns."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from benchmarks.core import checkpoints
from benchmarks.core.timing import clock, interleaved

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clocks that say which one they are."""
    monkeypatch.setattr("benchmarks.core.timing.time.process_time", lambda: 1.0)
    monkeypatch.setattr("benchmarks.core.timing.time.perf_counter", lambda: 2.0)


@pytest.mark.parametrize(("threads", "wall", "expected"), [(1, False, 1.0), (1, True, 2.0), (2, False, 2.0)])
def test_one_thread_is_timed_by_the_process(
    monkeypatch: pytest.MonkeyPatch, threads: int, wall: bool, expected: float
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert clock(CPU, wall=wall)() == expected


def test_cases_take_turns_and_warming_up_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now, seen = [0.0], list[str]()
    monkeypatch.setattr("benchmarks.core.timing.time.perf_counter", lambda: now[0])

    def taking(name: str, seconds: float) -> Callable[[], None]:
        def call() -> None:
            seen.append(name)
            now[0] += seconds

        return call

    cases = {"a": taking("a", 1.0), "b": taking("b", 3.0)}
    assert interleaved(cases, 2, CPU, warmup=1, wall=True) == {"a": [1.0, 1.0], "b": [3.0, 3.0]}
    assert "".join(seen) == "ababab"


def test_a_timing_that_was_cut_short_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "EVERY", -1.0)  # after every turn
    seen, broken = list[str](), list[bool]()

    def second() -> None:
        seen.append("b")
        if len(seen) == 6 and not broken:
            broken.append(True)
            raise InterruptedError

    cases = {"a": lambda: seen.append("a"), "b": second}
    with pytest.raises(InterruptedError):
        interleaved(cases, 3, CPU, warmup=1, checkpoint=tmp_path / "turns")
    seen.clear()
    timed = interleaved(cases, 3, CPU, warmup=1, checkpoint=tmp_path / "turns")
    assert {name: len(seconds) for name, seconds in timed.items()} == {"a": 3, "b": 3}
    assert len(seen) == 2 * 3  # one turn to warm up, and the two that were missing
