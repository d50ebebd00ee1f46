"""The tables of the studies: their columns and classes, and which rows are to test on."""

import pytest
import torch

from benchmarks.experiments.thin import tabular


@pytest.mark.parametrize(
    ("read", "test", "fewest", "columns", "classes"),
    [
        (tabular.stones, 10_000, 40_000, tabular.COLUMNS, tabular.CLASSES),
        (tabular.houses, 3000, 4000, tabular.HOUSES_COLUMNS, tabular.HOUSES_CLASSES),
    ],
)
def test_columns_are_numbers_of_one_scale_and_no_row_is_there_twice(
    read: tabular.Read, test: int, fewest: int, columns: int, classes: int
) -> None:
    data = tabular.table(read, test)
    x, y, test_x, test_y = data.x, data.y, data.test_x, data.test_y
    assert x.shape[1] == test_x.shape[1] == columns
    assert len(test_x) == len(test_y) == test
    assert len(x) == len(y) >= fewest
    torch.testing.assert_close(x.mean(0), torch.zeros(columns), atol=1e-3, rtol=0)
    torch.testing.assert_close(x.std(0), torch.ones(columns))
    assert sorted(set(torch.cat([y, test_y]).tolist())) == list(range(classes))
    assert len({tuple(row) for row in torch.cat([x, test_x]).tolist()}) == len(x) + len(test_x)


def test_test_rows_are_the_same_ones_however_many() -> None:
    few, many = tabular.table(tabular.stones, 100), tabular.table(tabular.stones, 10_000)
    assert torch.equal(few.test_y, many.test_y[-100:])
