"""Tensors in structures, lazy parameters."""

from collections import deque
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from mrreg.module_utils import check_materialized, tensors_in


@dataclass
class Output:
    loss: Tensor
    states: tuple[Tensor, ...]
    name: str = "no tensor"


def test_tensors_are_found_in_order() -> None:
    a, b, c, d = torch.arange(4).unbind()
    found = list(tensors_in([a, {"x": Output(b, (c,)), "y": deque([d, None])}, Output, "text", 1]))
    assert [id(t) for t in found] == [*map(id, (a, b, c, d))]


def test_lazy_parameters_are_named() -> None:
    with pytest.raises(RuntimeError, match=r"here: the model has no shape yet for '0\.bias', '0\.weight'\. Run one"):
        check_materialized("here", "model", nn.Sequential(nn.LazyLinear(2)))
