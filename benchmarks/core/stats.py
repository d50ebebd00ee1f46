"""Means, 95 % t-intervals and paired differences, and what they allow to be said."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean, median, stdev

from scipy.special import stdtrit

LEVEL = 0.95


@dataclass(frozen=True)
class Summary:
    """Numbers in brief: how many, mean, smallest, largest, half the width of the 95 % interval (nan if n < 2).

    `lost` counts numbers that were not finite: diverged runs.
    """

    n: int
    mean: float
    low: float
    high: float
    half: float
    median: float
    lost: int = 0

    @property
    def interval(self) -> tuple[float, float]:
        return self.mean - self.half, self.mean + self.half


def summarize(values: Iterable[float]) -> Summary:
    """The summary of some numbers; those that are not finite (diverged runs) are counted, not averaged."""
    given = list(values)
    kept = [value for value in given if math.isfinite(value)]
    lost = len(given) - len(kept)
    if not kept:
        return Summary(0, math.nan, math.nan, math.nan, math.nan, math.nan, lost)
    n = len(kept)
    half = float(stdtrit(n - 1, (1 + LEVEL) / 2)) * stdev(kept) / math.sqrt(n) if n > 1 else math.nan
    return Summary(n, fmean(kept), min(kept), max(kept), half, median(kept), lost)


def paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> list[float]:
    """Ours minus theirs for every seed that both have."""
    return [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]


def judge(differences: Iterable[float], above: float = 0.0) -> str:
    """Return where differences lie from a bound: "above", "below", "within noise", "one run", or "no runs"."""
    all_of_it = summarize(differences)
    if all_of_it.n == 0:
        return "no runs"
    if all_of_it.n == 1:
        return "one run"
    low, high = all_of_it.interval
    if low > above:
        return "above"
    return "below" if high < above else "within noise"
