"""The study on the table of diamonds: its rows, the splits, as many trials for everyone, and a whole smoke run."""

import torch

from benchmarks.core.comparison import Job
from benchmarks.experiments.thin import tabular

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
