"""Summaries, paired differences, and the words for them."""

import math

import pytest

from benchmarks.core import stats


@pytest.mark.parametrize(
    ("values", "n", "mean", "half", "lost"),
    [
        ([], 0, math.nan, math.nan, 0),
        ([3.0], 1, 3.0, math.nan, 0),
        ([1.0, 3.0], 2, 2.0, 12.706, 0),
        ([1.0, 2.0, 3.0], 3, 2.0, 2.484, 0),
        ([2.0, math.nan, math.inf], 1, 2.0, math.nan, 2),
        ([5.0, 5.0], 2, 5.0, 0.0, 0),
    ],
)
def test_summaries(values: list[float], n: int, mean: float, half: float, lost: int) -> None:
    found = stats.summarize(values)
    assert (found.n, found.lost) == (n, lost)
    assert found.mean == pytest.approx(mean, nan_ok=True)
    assert found.half == pytest.approx(half, abs=1e-3, nan_ok=True)


def test_differences_are_paired_by_seed() -> None:
    assert stats.paired({0: 5.0, 1: 6.0, 7: 0.0}, {1: 1.0, 0: 2.0, 9: 9.0}) == [3.0, 5.0]


@pytest.mark.parametrize(
    ("differences", "above", "said"),
    [
        ([], 0.0, "no runs"),
        ([math.nan], 0.0, "no runs"),
        ([1.0], 0.0, "one run"),
        ([1.0, 1.1, 0.9], 0.0, "above"),
        ([1.0, 1.1, 0.9], 2.0, "below"),
        ([1.0, -1.0, 0.5], 0.0, "within noise"),
        ([-0.1, -0.11, -0.09], -0.5, "above"),
    ],
)
def test_what_differences_allow_to_say(differences: list[float], above: float, said: str) -> None:
    assert stats.judge(differences, above) == said
