"""The comparisons that come first: signs, words, and what is left out."""

from dataclasses import replace
from pathlib import Path

import pytest
from helpers.records import record

from benchmarks.core import records
from benchmarks.report import highlights, plots
from benchmarks.report.highlights import CARDS, EXCERPT, Comparison

MASKS = Comparison("t", "masks", "SGD", "mnist", ("masks", "SGD"), "")
RESULTS = Path(highlights.__file__).parents[1] / "results"
DOCS = Path(highlights.__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    ("comparison", "said"),
    [
        (MASKS, "ahead: +2.0 points (+1.8 to +2.2)"),
        (replace(MASKS, methods=("SGD", "masks")), "behind: −2.0 points (−2.2 to −1.8)"),  # noqa: RUF001
        (replace(MASKS, lower=True, unit="nats"), "behind: −2.0 nats (−2.2 to −1.8)"),  # noqa: RUF001
        (replace(MASKS, methods=("masks", "nobody")), "–"),  # noqa: RUF001
    ],
)
def test_a_difference_is_in_favour_of_ours(comparison: Comparison, said: str) -> None:
    assert (
        comparison.said({"mnist": record(accuracy={"SGD": [90, 91, 92], "masks": [92, 93.1, 93.9]})}, "accuracy")
        == said
    )


def test_what_is_within_noise_is_level() -> None:
    noisy = {"mnist": record(accuracy={"SGD": [90.0, 92.0, 91.0], "masks": [91.0, 92.0, 90.5]})}
    assert MASKS.said(noisy, "accuracy").startswith("level: +0.2 points")


def test_rows_without_a_record_or_numbers_are_left_out() -> None:
    elsewhere = replace(MASKS, record="ptb")
    nobody = replace(MASKS, methods=("nobody", "SGD"))
    (row,) = highlights.excerpt({"mnist": record()}, [elsewhere, nobody, MASKS])
    assert row[0] is MASKS
    assert row[1].startswith("–")  # noqa: RUF001
    assert highlights.cards({}, {}) == []


def test_a_cost_needs_its_numbers() -> None:
    cost = highlights.Cost("{} and {}", "mnist", ("SGD", "masks"), "accuracy")
    assert cost.said({"mnist": record()}) == "91.00 and 93.10"
    assert cost.said({}) == ""
    assert cost.said({"mnist": record(accuracy={"SGD": [1.0]})}) == ""


def test_the_committed_records_have_every_row_card_and_plot() -> None:
    found = {each.benchmark: each for each in records.load_all(RESULTS)}
    assert len(highlights.excerpt(found)) == len(EXCERPT) >= 6
    looks = plots.palette(highlights.LABELS)
    shown = highlights.cards(found, looks)
    assert [card.title for card in shown] == [card.title for card in CARDS]
    assert all(
        card.cost and card.plot and len(card.gains) == len(given.comparisons)
        for card, given in zip(shown, CARDS, strict=True)
    )
    page = (DOCS / "results.md").read_text(encoding="utf-8")
    for _, seconds, epochs in highlights.excerpt(found):
        assert f"| {seconds} | {epochs} |" in page  # else: python -m benchmarks report
    picture = highlights.picture(found, looks)
    assert picture == highlights.picture(found, looks)
    assert b"<dc:date>" not in picture
