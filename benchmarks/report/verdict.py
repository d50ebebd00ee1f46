"""The verdict on every claim, and on a table or figure as a count of them, by one rule that every report prints."""

import math
from collections.abc import Sequence

from benchmarks.core import stats
from benchmarks.core.records import Record
from benchmarks.core.sections import Row, Section

REPRODUCED, NOISE, CONTRADICTED, NOT_RUN = WORDS = ("reproduced", "within noise", "contradicted", "not run")
RULE = (
    "A claim is reproduced where the whole 95 % t-interval of its numbers (one a seed, paired by seed where methods "
    "are compared) lies on its side of the bound, contradicted where the whole interval lies on the other side, and "
    "within noise where the interval contains the bound or there is only one run. A number of the paper is reproduced "
    "where our mean (the median for seconds) is better or falls short by no more than the stated tolerance; otherwise "
    "the interval decides between within noise and contradicted. Numbers are judged only where network and data are "
    "the paper's: elsewhere they differ for that reason alone, and stand side by side without a verdict. The scale "
    "says how the setting differs from the paper's; it is no part of the verdict on claims. Where the paper claims "
    "nothing, the claims are this project's own."
)


FOUND = {"above": REPRODUCED, "below": CONTRADICTED, "no runs": NOT_RUN}


def judge(values: Sequence[float], bound: float = 0.0) -> str:
    """Judge the claim that numbers lie above a bound, in one of the four words."""
    return FOUND.get(stats.judge(values, bound), NOISE)


def judge_number(row: Row, section: Section, record: Record) -> str:
    """Judge our number in a row against the paper's."""
    assert row.paper is not None
    assert section.tolerance is not None
    sign = -1 if section.better == "lower" else 1
    lead = sign * (center(row, section, record) - row.paper.mean)
    if lead >= -section.tolerance:
        return REPRODUCED
    return judge([sign * value for value in row.values(record)], sign * row.paper.mean - section.tolerance)


def center(row: Row, section: Section, record: Record) -> float:
    """Return our number in a row: the mean, or the median where the section says so."""
    summary = stats.summarize(row.values(record))
    return summary.median if section.center == "median" else summary.mean


def tolerance(section: Section, record: Record) -> float | None:
    """Return how far a number may be from the paper's; None where network or data are not the paper's."""
    comparable = section.full if section.comparable is None else section.comparable
    return section.tolerance if record.preset in comparable else None


def compared(section: Section, record: Record) -> list[Row]:
    """Return the rows whose numbers are judged against the paper's."""
    return [row for row in section.rows if row.paper and tolerance(section, record) is not None]


def count(words: Sequence[str]) -> str:
    """Count verdicts in words: "3 of 4 reproduced, 1 within noise"."""
    if set(words) == {NOT_RUN}:
        return NOT_RUN
    rest = [f"{n} {word}" for word in WORDS[1:] if (n := words.count(word))]
    return ", ".join([f"{words.count(REPRODUCED)} of {len(words)} reproduced", *rest])


def summarize(section: Section, record: Record) -> str:
    """Return the verdict on one table or figure from one record; claims and numbers are counted apart."""
    claims = [judge(claim.values(record), claim.above) for claim in section.claims]
    numbers = [judge_number(row, section, record) for row in compared(section, record)]
    if not claims and not numbers:
        values = [value for row in section.rows for value in row.values(record)]
        return section.found if any(map(math.isfinite, values)) or not section.rows else NOT_RUN
    if claims and numbers:
        return f"claims: {count(claims)}; numbers: {count(numbers)}"
    return count(claims or numbers)


def scale(section: Section, record: Record) -> str:
    """Return how the setting differs from the paper's; empty beyond the paper."""
    if not section.item:
        return ""
    return "the paper's" if record.preset in section.full else section.smaller
