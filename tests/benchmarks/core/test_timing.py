"""Alternatives that are timed take turns."""

from collections.abc import Callable

import pytest
import torch

from benchmarks.core.timing import interleaved

CPU = torch.device("cpu")


def test_cases_take_turns_and_warming_up_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now, seen = [0.0], list[str]()
    monkeypatch.setattr("benchmarks.core.timing.clock", lambda device: lambda: now[0])

    def taking(name: str, seconds: float) -> Callable[[], None]:
        def call() -> None:
            seen.append(name)
            now[0] += seconds

        return call

    cases = {"a": taking("a", 1.0), "b": taking("b", 3.0)}
    assert interleaved(cases, 2, CPU, warmup=1) == {"a": [1.0, 1.0], "b": [3.0, 3.0]}
    assert "".join(seen) == "ababab"
