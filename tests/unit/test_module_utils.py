"""Tensors in structures, modules that run torch's own code, lazy parameters."""

from collections import deque
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from mrreg.module_utils import check_materialized, has_stock_forward, tensors_in


@dataclass
class Output:
    loss: Tensor
    states: tuple[Tensor, ...]
    name: str = "no tensor"


def test_tensors_are_found_in_order() -> None:
    a, b, c, d = torch.arange(4).unbind()
    found = list(tensors_in([a, {"x": Output(b, (c,)), "y": deque([d, None])}, Output, "text", 1]))
    assert [id(t) for t in found] == [*map(id, (a, b, c, d))]


class Renamed(nn.Linear):
    """A forward of torch, but not a class of torch."""


class Changed(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return x


def test_who_has_the_forward_of_torch() -> None:
    stock = nn.MultiheadAttention(4, 2), Renamed(2, 2), weight_norm(nn.Linear(2, 2)), nn.DataParallel(nn.Linear(2, 2))
    assert [has_stock_forward(each) for each in (*stock, Changed(2, 2))] == [True] * 4 + [False]


def test_lazy_parameters_are_named() -> None:
    with pytest.raises(RuntimeError, match=r"here: the model has no shape yet for '0\.bias', '0\.weight'\. Run one"):
        check_materialized("here", "model", nn.Sequential(nn.LazyLinear(2)))
