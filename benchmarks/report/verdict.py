"""Whether a table or figure came out, by one rule that is printed in every report."""

from dataclasses import dataclass

from benchmarks.core import stats
from benchmarks.core.records import Record
from benchmarks.core.sections import Claim, Row, Section

RULE = (
    "A claim holds where the whole 95 % t-interval of its numbers (one a seed, paired by seed where methods are "
    "compared) lies on its side of the bound; otherwise it is within noise, or the opposite holds. A table or figure "
    "is reproduced when each of its claims holds and each of our means (medians for seconds) is within the stated "
    "tolerance of the paper's number, and not reproduced when one of these fails. It is called smaller scale, with the "
    "same checks beside it, when the preset is smaller than the paper's setting."
)
WORDS = {
    "above": "holds",
    "below": "the opposite holds",
    "within noise": "within noise",
    "one run": "one run, no interval",
    "no runs": "no runs",
}


@dataclass(frozen=True)
class Verdict:
    """A word, and what speaks against the paper (or is not there yet)."""

    word: str
    against: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.word}: {'; '.join(self.against)}" if self.against else self.word


def judge_claim(claim: Claim, record: Record) -> str:
    """What the record says of a claim, in words."""
    return WORDS[stats.judge(claim.values(record), claim.above)]


def judge(section: Section, record: Record) -> Verdict:
    """The verdict on one table or figure from one record."""
    if any(not row.values(record) for row in section.rows):
        return Verdict("unfinished", (f"{len(record.runs)} of {record.total} runs are there",))
    compared = [row for row in section.rows if row.paper and section.tolerance is not None]
    if not compared and not section.claims:
        return Verdict("measured")
    against = tuple(
        [reason for row in compared if (reason := _far_off(row, section, record))]
        + [f"{claim.text} ({said})" for claim in section.claims if (said := judge_claim(claim, record)) != "holds"]
    )
    if not section.item:
        return Verdict("does not hold" if against else "holds", against)
    if record.preset not in section.full:
        return Verdict("smaller scale, does not hold" if against else "smaller scale, holds", against)
    return Verdict("not reproduced" if against else "reproduced", against)


def center(row: Row, section: Section, record: Record) -> float:
    """Our number in a row: the mean, or the median where the section says so."""
    summary = stats.summarize(row.values(record))
    return summary.median if section.center == "median" else summary.mean


def _far_off(row: Row, section: Section, record: Record) -> str:
    assert row.paper is not None
    assert section.tolerance is not None
    ours = center(row, section, record)
    if abs(ours - row.paper.mean) <= section.tolerance:
        return ""
    return f"{row.label}: {ours:.{section.digits}f} instead of {row.paper.mean:.{section.digits}f}"
