"""What stands in the README, in the guide and on cards: words that follow from paired differences, nothing else."""

from pathlib import Path

import pytest
from helpers.records import record

from benchmarks.core import records
from benchmarks.core.sections import Shown
from benchmarks.experiments.regularizers import METHODS
from benchmarks.report import headlines, pages
from benchmarks.report.headlines import MINUS, NONE, Pair

RECORDS = Path(__file__).parents[3] / "benchmarks" / "results"
SHOWN = Shown("t", {"a": "masks", "b": "SGD"}, task="a task", against=[("a", "b")])


@pytest.mark.parametrize(
    ("masks", "lower", "said"),
    [
        ([2.0, 3.0, 4.0], False, "ahead: +2.0 points (+2.0 to +2.0)"),
        ([2.0, 3.0, 4.0], True, "behind: -2.000 nats (-2.000 to -2.000)"),
        ([-3.0, 1.0, 5.0], False, "level: +0.0 points (-7.5 to +7.5)"),
        ([2.0], False, NONE),
    ],
)
def test_a_difference_is_in_favour_of_ours_and_has_one_of_three_words(
    masks: list[float], lower: bool, said: str
) -> None:
    made = record(accuracy={"masks": masks, "SGD": [0.0, 1.0, 2.0]})
    shown = Shown("t", SHOWN.methods, lower=lower)
    assert Pair(made, shown, "a", "b").said("accuracy") == (said if said == NONE else said.replace("-", MINUS))


def test_pairs_without_numbers_are_left_out() -> None:
    there, empty = record(), record(accuracy={}, benchmark="ptb")
    found = headlines.pairs([(there, [SHOWN]), (empty, [SHOWN])], ["ptb", "mnist", "nobody"])
    assert [pair.record for pair in found] == [there]
    assert found[0].seconds == NONE
    assert found[0].cost() == (NONE, NONE)


def test_methods_have_the_names_that_the_studies_give_them() -> None:
    assert {*headlines.VARIANTS, *headlines.RIVALS, headlines.OURS, headlines.TUNED} <= METHODS.keys()


def test_cards_rows_and_plots_are_those_of_the_committed_records() -> None:
    """And nobody has typed a result: the pages say what the records say, for every task that has one."""
    shown, shows = pages.sources(records.load_all(RECORDS))
    cards = headlines.cards(shows, pages._looks(shown))
    assert {"Masks", "Fine-tuning", "Several time scales"} <= {card["title"] for card in cards}
    assert all(card["plot"] for card in cards)
    root = RECORDS.parents[1]
    for page, table in (("README.md", pages.excerpt(shows)), ("docs/when-it-helps.md", pages.thin(shows))):
        rows = table.splitlines()[2:]
        assert not rows or table in (root / page).read_text(encoding="utf-8")
    assert len((root / "docs" / "results.svg").read_bytes()) < 100_000
