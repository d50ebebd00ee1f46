"""The answers on thin training: who is ahead of what, what a step costs, and that the page has what the records say."""

from dataclasses import replace
from pathlib import Path

from benchmarks.core import records
from benchmarks.core.records import Record
from benchmarks.report import answers, pages
from benchmarks.report.answers import Task

ROOT = Path(pages.__file__).parents[2]
TASKS = (
    Task("text", "mnist", ("dropout", "none"), loss=True),
    Task("images", "mnist", ("dropout", "none"), prefix="images: "),
    Task("elsewhere", "ptb", ("dropout",)),
)


def record(numbers: dict[str, dict[str, list[float]]]) -> Record:
    """Return a record with numbers by name, method and seed."""
    made = Record("mnist", "cpu", {}, "cpu: test", 1, {})
    for name, methods in numbers.items():
        for method, values in methods.items():
            for seed, value in enumerate(values):
                made.add(f"{name} {method} {seed}", method, (seed,), 1.0, [{name: value}])
    return made


def test_words_follow_from_the_records_and_less_loss_is_better() -> None:
    images = {
        "images: thin, k = 5": [91, 92.1, 93],
        "images: dropout": [91.1, 91.9, 93],
        "images: none": [88, 89, 90.1],
    }
    text = {"thin, k = 5": [1.1, 1.2, 1.31], "dropout": [1.2, 1.3, 1.4], "none": [1.1, 1.3, 1.2]}
    found = record({"accuracy at equal seconds": images, "loss at equal seconds": text})
    said = answers.sentences({"mnist": found}, TASKS)
    assert "Against dropout, at equal seconds, thin training is ahead: *text*; level: *images*." in said
    assert "Against no regularization, at equal seconds, thin training is ahead: *images*; level: *text*." in said


def test_the_cost_of_a_step_is_the_median() -> None:
    ratios = {"relative cost": {"thin, k = 5": [0.8, 0.7, 0.9], "dropout": [1.4, 1.4, 1.5]}}
    said = answers.sentences({"mnist": record(ratios)}, TASKS)
    assert "A step takes, plain training's being 1: *text* thin 0.80, dropout 1.40." in said


def test_the_shares_are_those_of_the_trainings_that_were_compared() -> None:
    made = Record("mnist", "cpu", {}, "cpu: test", 1, {})
    made.add("search", "search: thin, k = 5", (1000,), 1.0, [{"p": 0.125}])
    made.add("text", "thin, k = 5", (0,), 1.0, [{"p": 0.25, "heads": 0.17}])
    made.add("images", "images: thin, k = 5", (0,), 1.0, [{"p": [0.2, 0.5]}])
    said = answers.sentences({"mnist": made}, TASKS)[-1]
    assert said == "Shares absent that did best on validation data: *text* 0.25, heads 0.17; *images* 0.2/0.5."


def test_losses_stand_where_no_training_has_diverged() -> None:
    numbers = {"loss": {"a, lr 1: none": [1.0, 2.0], "a, lr 1: k = 5, boost 5": [1.0, float("nan")]}}
    made = replace(record(numbers), benchmark="thin-boost")
    assert answers.boosts({"thin-boost": made}).splitlines() == [
        "|  | none | k = 5, boost 5 |",
        "| --- | --- | --- |",
        "| a, lr 1 | 1.50 | 1 of 2 diverged |",
    ]
    assert answers.boosts({}) == ""


def test_the_page_says_what_the_committed_records_say() -> None:
    found = {each.benchmark: each for each in records.load_all(ROOT / "benchmarks" / "results")}
    page = (ROOT / "docs" / "when-it-helps.md").read_text(encoding="utf-8")
    for sentence in answers.sentences(found):
        assert f"- {sentence}\n" in page  # else: python -m benchmarks report --readme
