"""What the demo says at its end is true whatever came out."""

import pytest

from benchmarks.core.records import Record
from benchmarks.experiments.demo.command import Race

RACE = Race("Thin training", "thin", "dropout", "few digits")


def record(thin: list[list[float]], dropout: list[list[float]]) -> Record:
    made = Record("demo", "smoke", {}, "cpu", 1, {})
    for name, curves, seconds in (("thin", thin, [0.5, 1.0, 2.0]), ("dropout", dropout, [1.0, 2.0, 4.0])):
        for seed, curve in enumerate(curves):
            result = {"accuracy by time": curve, "seconds": seconds}
            made.add(f"{name} {seed}", name, (seed,), 1.0, [result])
    return made


def test_where_every_seed_gets_there_the_share_of_the_time_is_given() -> None:
    said = RACE.said(record([[70, 90, 91], [70, 80, 95]], [[60, 80, 90], [60, 80, 90]]))
    start = "Thin training reached the accuracy of dropout in 0.38 (95 % interval "
    assert said.startswith(start)  # 1.0 / 4 and 2.0 / 4
    assert said.endswith("2 seeds) of its time on few digits.")


def test_a_method_that_is_slower_is_said_to_be() -> None:
    slow = Record("demo", "smoke", {}, "cpu", 1, {})
    for seed in (0, 1):
        slow.add(f"a{seed}", "thin", (seed,), 1.0, [{"accuracy by time": [80, 90], "seconds": [4.0, 8.0]}])
        slow.add(f"b{seed}", "dropout", (seed,), 1.0, [{"accuracy by time": [80, 90], "seconds": [2.0, 4.0]}])
    assert "in 2.00 (95 % interval 2.00 to 2.00, 2 seeds) of its time" in RACE.said(slow)


@pytest.mark.parametrize(
    ("last", "reached", "verdict"),
    [([80, 81, 80], 0, "behind: -9.67 "), ([91, 70, 90], 2, "level within noise: -6.33 ")],
)
def test_where_a_seed_does_not_get_there_it_says_so(last: list[float], reached: int, verdict: str) -> None:
    said = RACE.said(record([[60, 70, each] for each in last], [[60, 80, 90]] * 3))
    assert f"with {reached} of 3 seeds on few digits; in the end it was {verdict}" in said


def test_one_seed_is_too_few() -> None:
    assert "too few" in RACE.said(record([[70, 80, 90]], [[60, 80, 90]]))


def test_what_comes_in_the_end_is_compared_by_seed() -> None:
    said = RACE.said(record([[60, 70, 80], [60, 70, 85]], [[60, 80, 90], [60, 80, 95]]))
    assert "behind: -10.00 (95 % interval -10.00 to -10.00, 2 seeds) points from it" in said
