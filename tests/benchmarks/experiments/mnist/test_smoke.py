"""The MNIST benchmarks end to end, on the digits that come with scikit-learn."""

from typing import Any

import pytest

from benchmarks.core.records import Record, load
from benchmarks.core.runner import Benchmark, run
from benchmarks.core.sections import Claim, Row
from benchmarks.experiments.mnist import search as mnist_search
from benchmarks.experiments.mnist import small as mnist_small
from benchmarks.experiments.mnist import tables as mnist
from benchmarks.experiments.mnist.small import FEW, sections
from benchmarks.report import plots as report_plots

pytestmark = pytest.mark.slow

ALL: list[Benchmark[Any]] = [mnist.BENCHMARK, mnist_search.BENCHMARK, mnist_small.BENCHMARK]


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Record]:
    """The smoke records of all MNIST benchmarks."""
    folder = tmp_path_factory.mktemp("records")
    return {each.name: load(run(each, "smoke", folder).path) for each in ALL}


def test_smoke_runs_are_all_in_the_record(smoke: dict[str, Record]) -> None:
    for benchmark in ALL:
        assert len(smoke[benchmark.name].runs) == len(benchmark.runs(benchmark.presets["smoke"]))


def test_smoke_learns_digits(smoke: dict[str, Record]) -> None:
    for method in mnist.FIGURE:
        curves = smoke["mnist"].curves(method, "accuracy per epoch")
        assert sorted(curves) == [0, 1]
        assert all(len(curve) == 3 for curve in curves.values())
        assert all(best > 30 for best in smoke["mnist"].numbers(method, "best accuracy").values())


def test_sections_find_their_numbers(smoke: dict[str, Record]) -> None:
    for section in mnist.SECTIONS:
        parts: list[Row | Claim] = [*section.rows, *section.claims]
        assert all(len(part.values(smoke["mnist"])) == 2 for part in parts)
        assert len(report_plots.plots(section, smoke["mnist"])) == len(section.plots)
    assert mnist_search.facts(smoke["mnist-search"])[0].startswith("Nearest to all of the table: ")


def test_few_images_are_compared_at_equal_epochs_and_seconds(smoke: dict[str, Record]) -> None:
    made = smoke["mnist-small"]
    config = mnist_small.PRESETS["smoke"]
    for section in sections(100, FEW, frozenset({"smoke"})):
        assert all(len(row.values(made)) == config.seeds for row in section.rows)
        assert len(report_plots.plots(section, made)) == len(section.plots)
        assert section.title.endswith("SGD = 1") or section.facts(made)[0].startswith(
            "Chosen p (input/hidden): SGD 0/0;"
        )
    plain = made.results("100: SGD")[0]
    assert plain["epochs at equal seconds"] == config.sizes[0].epochs
    assert plain["accuracy"] == plain["accuracy at equal seconds"]
    for result in made.results("100: dropout").values():
        steps = 4 * config.sizes[0].epochs
        assert result["epochs at equal seconds"] == pytest.approx(max(1, steps / result["relative cost"]) / 4, abs=0.13)
