"""The study on the table of diamonds: its rows, the splits, as many trials for everyone, and a whole smoke run."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.core import records, runner
from benchmarks.core.comparison import Job
from benchmarks.experiments.thin import tabular
from benchmarks.experiments.thin.mlp import Method

JOB = Job("compare", 10, None, torch.device("cpu"), None, "")


def test_columns_are_numbers_of_one_scale_and_no_stone_is_listed_twice() -> None:
    x, y, test_x, test_y = tabular.table(10_000)
    assert x.shape[1] == test_x.shape[1] == tabular.COLUMNS
    assert len(test_x) == len(test_y) == 10_000
    assert len(x) == len(y) > 40_000
    torch.testing.assert_close(x.mean(0), torch.zeros(tabular.COLUMNS), atol=1e-3, rtol=0)
    torch.testing.assert_close(x.std(0), torch.ones(tabular.COLUMNS))
    assert sorted(set(torch.cat([y, test_y]).tolist())) == list(range(tabular.CLASSES))
    assert len({tuple(row) for row in torch.cat([x, test_x]).tolist()}) == len(x) + len(test_x)


def test_test_rows_are_the_same_ones_however_many() -> None:
    few, many = tabular.table(100), tabular.table(10_000)
    assert torch.equal(few[3], many[3][-100:])


def test_rows_of_a_seed_are_its_own_and_in_no_other_split() -> None:
    config = tabular.PRESETS["smoke"]
    splits = tabular.build(config, Method(), 1, JOB).splits
    rows = {name: {tuple(row) for x, _ in part() for row in x.tolist()} for name, part in splits.items()}
    counts = {"drawn": config.rows, "validation": config.validation, "test": config.test}
    assert {name: len(found) for name, found in rows.items()} == counts
    assert len(set.union(*rows.values())) == sum(counts.values())
    other = tabular.build(config, Method(), 2, JOB).splits["drawn"]()
    assert rows["drawn"] != {tuple(row) for x, _ in other for row in x.tolist()}


@pytest.mark.parametrize("name", tabular.METHODS)
def test_every_method_begins_with_the_same_weights(name: str) -> None:
    config, x = tabular.PRESETS["smoke"], torch.rand(3, tabular.COLUMNS)
    methods = Method(), replace(tabular.METHODS[name], p=(0.1, 0.5))
    plain, own = (tabular.build(config, method, 1, JOB).model.eval()(x) for method in methods)
    torch.testing.assert_close(own, plain)


@pytest.mark.parametrize("preset", tabular.PRESETS)
def test_every_method_but_none_has_as_many_trials(preset: str) -> None:
    (comparison,) = tabular.comparisons(tabular.PRESETS[preset])
    assert comparison.search
    assert comparison.search.grid.keys() == comparison.methods.keys() - {"none"}
    assert len({len(grid) for grid in comparison.search.grid.values()}) == 1


def test_study_runs(tmp_path: Path) -> None:
    outcome = runner.run(tabular.BENCHMARK, "smoke", tmp_path)
    record = records.load(outcome.path)
    assert outcome.finished == outcome.total
    for name in tabular.METHODS:
        assert len(record.numbers(name, "accuracy at equal seconds")) == 2
