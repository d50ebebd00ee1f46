"""Tensors in structures, modules that run torch's own code, lazy parameters."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from mrreg.module_utils import check_materialized, has_stock_forward, is_stock, tensors_in


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


def _hooked() -> nn.Module:
    layer = nn.Linear(2, 2)
    layer.register_forward_hook(lambda *_: None)
    return layer


def _replaced() -> Any:
    layer: Any = nn.Linear(2, 2)
    layer.forward = lambda x: x
    return layer


@pytest.mark.parametrize(
    ("make", "stock", "forward"),
    [
        (lambda: nn.Linear(2, 2), True, True),
        (lambda: nn.TransformerEncoderLayer(4, 2), True, True),
        (lambda: nn.MultiheadAttention(4, 2), True, True),
        (lambda: Renamed(2, 2), False, True),
        (_hooked, False, True),
        (_replaced, False, True),
        (lambda: weight_norm(nn.Linear(2, 2)), False, True),
        (lambda: nn.DataParallel(nn.Linear(2, 2)), False, True),
    ],
)
def test_modules_of_torch_that_nobody_changed(make: Callable[[], Any], stock: bool, forward: bool) -> None:
    assert (is_stock(make()), has_stock_forward(make())) == (stock, forward)


def test_a_patched_class_is_not_stock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: x)
    assert not is_stock(nn.Linear(2, 2))


def test_lazy_parameters_are_named() -> None:
    with pytest.raises(RuntimeError, match=r"here: the model has no shape yet for '0\.bias', '0\.weight'\. Run one"):
        check_materialized("here", "model", nn.Sequential(nn.LazyLinear(2)))
