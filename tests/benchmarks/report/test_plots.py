"""Plots: one look for each method, labelled axes, the same file for the same numbers."""

import base64

import matplotlib as mpl
import pytest
from helpers.records import FULL, PLOTS, ROWS, record

from benchmarks.core.sections import Bars, Curves, Section
from benchmarks.report import plots


def test_every_method_has_one_look_and_many_are_told_apart() -> None:
    names = [f"masks {k}" for k in range(40)]
    looks = plots.palette([*names, *names])
    assert len(set(looks.values())) == len(looks) == 40


def test_methods_of_curves_come_before_those_of_tables() -> None:
    assert plots.labels([Section("", "t", rows=ROWS, plots=(PLOTS[1],))]) == ["SGD", "SGD", "masks"]


def test_the_same_record_gives_the_same_picture() -> None:
    first, second = (plots.plots(FULL, record()) for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    ("plot", "shown"),
    [(PLOTS[0], ["epoch", "accuracy", "SGD", "masks", "paper"]), (PLOTS[2], ["accuracy", "SGD", "masks", "paper"])],
)
def test_axes_and_legends_are_labelled(plot: Curves | Bars, shown: list[str]) -> None:
    with mpl.rc_context({"svg.fonttype": "none"}):
        (_, uri), *_ = plots.plots(Section("", "t", rows=ROWS, plots=(plot,)), record())
    svg = base64.b64decode(uri.partition("base64,")[2]).decode()
    assert all(word in svg for word in shown)


@pytest.mark.parametrize("plot", [PLOTS[0], PLOTS[2]])
def test_a_plot_without_numbers_is_left_out(plot: Curves | Bars) -> None:
    assert plots.plots(Section("", "t", rows=ROWS, plots=(plot,)), record(accuracy={})) == []
