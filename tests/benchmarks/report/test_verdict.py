"""The verdict on claims and numbers, and how a row counts them."""

from dataclasses import replace
from typing import Literal

import pytest
from helpers.records import BETTER, ROWS, WORSE, record

from benchmarks.core.sections import Claim, Paper, Row, Section, gain, metric
from benchmarks.report import verdict


def test_a_claim_gets_one_of_four_words() -> None:
    """Where its numbers lie from a bound, test_stats.py says."""
    numbers: list[list[float]] = [[1.0, 1.1, 0.9], [-1.0, -1.1, -0.9], [1.0, -1.0], [1.0], []]
    words = ["reproduced", "contradicted", "within noise", "within noise", "not run"]
    assert [verdict.judge(each) for each in numbers] == words


@pytest.mark.parametrize(
    ("paper", "better", "tolerance", "said"),
    [
        (91.0, "higher", 0.5, "reproduced"),
        (91.4, "higher", 0.5, "reproduced"),
        (80.0, "higher", 0.5, "reproduced"),
        (80.0, "lower", 0.5, "contradicted"),
        (99.0, "lower", 0.5, "reproduced"),
        (92.0, "higher", 0.5, "within noise"),
        (99.0, "higher", 0.5, "contradicted"),
    ],
)
def test_a_number_that_is_better_than_the_papers_is_reproduced(
    paper: float, better: Literal["higher", "lower"], tolerance: float, said: str
) -> None:
    row = Row("SGD", metric("SGD", "accuracy"), Paper(paper))
    section = Section("Table A5", "t", rows=(row,), tolerance=tolerance, better=better)
    assert verdict.judge_number(row, section, record()) == said


UNPAIRED = Claim("masks beat nobody", gain("masks", "nobody", "accuracy"))


@pytest.mark.parametrize(
    ("section", "said"),
    [
        (Section("Figure 8", "t", claims=(BETTER,)), "1 of 1 reproduced"),
        (Section("Figure 8", "t", claims=(BETTER, WORSE)), "1 of 2 reproduced, 1 contradicted"),
        (Section("Figure 8", "t", claims=(BETTER, WORSE, UNPAIRED)), "1 of 3 reproduced, 1 contradicted, 1 not run"),
        (Section("Figure 8", "t", claims=(UNPAIRED,)), "not run"),
        (Section("Table A5", "t", rows=ROWS), "measured"),
        (Section("Table A5", "t", rows=(Row("nobody", metric("nobody", "accuracy")),)), "not run"),
    ],
)
@pytest.mark.parametrize("preset", ["cpu", "paper"])
def test_a_row_counts_its_claims_at_every_scale(section: Section, said: str, preset: str) -> None:
    assert verdict.summarize(section, record(preset)) == said


@pytest.mark.parametrize(
    ("preset", "comparable", "judged"),
    [("paper", None, True), ("cpu", None, False), ("cpu", frozenset({"cpu"}), True)],
)
def test_numbers_are_judged_only_where_network_and_data_are_the_papers(
    preset: str, comparable: frozenset[str] | None, judged: bool
) -> None:
    section = Section("Table A5", "t", rows=ROWS, claims=(WORSE,), tolerance=0.5, comparable=comparable)
    claims, numbers = "0 of 1 reproduced, 1 contradicted", "2 of 2 reproduced"
    said = verdict.summarize(section, record(preset))
    assert said == (f"claims: {claims}; numbers: {numbers}" if judged else claims)
    said = verdict.summarize(replace(section, claims=()), record(preset))
    assert said == (numbers if judged else "measured")


@pytest.mark.parametrize(
    ("item", "preset", "said"), [("Figure 8", "paper", "the paper's"), ("Figure 8", "cpu", "tiny"), ("", "cpu", "")]
)
def test_the_scale_is_said_beside_the_verdict(item: str, preset: str, said: str) -> None:
    assert verdict.scale(Section(item, "t", smaller="tiny"), record(preset)) == said


def test_medians_are_compared_where_the_section_says_so() -> None:
    slow_once = record(accuracy={"SGD": [1.0, 1.0, -100.0]})
    row = Row("s", metric("SGD", "accuracy"), Paper(1.0))
    section = Section("", "t", rows=(row,), tolerance=0.1, center="median")
    assert verdict.judge_number(row, section, slow_once) == "reproduced"
    assert verdict.judge_number(row, replace(section, center="mean"), slow_once) == "within noise"
