"""Gradients that belong to somebody else: masked steps see them masked, and leave them as they are."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.masks import bits
from torch import Tensor, nn

import mrreg
from mrreg import MultirateMask

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda params: torch.optim.SGD(params, lr=0.1),
    "momentum": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    "AdamW": lambda params: torch.optim.AdamW(params, lr=0.1),
}


def _masked(optimizer: str = "SGD") -> tuple[nn.Linear, MultirateMask, torch.optim.Optimizer]:
    torch.manual_seed(0)
    layer = nn.Linear(6, 5, bias=False)
    mask = MultirateMask(layer, p=0.5, k=3)
    driver = OPTIMIZERS[optimizer](mask.parameters())
    mrreg.attach(driver, mask)
    mask(torch.zeros(1, 6))  # else masks say that they have no effect
    return layer, mask, driver


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_gradient_that_is_handed_over_again_and_again(optimizer: str) -> None:
    layer, mask, driver = _masked(optimizer)
    twin = nn.Linear(6, 5, bias=False)
    twin.load_state_dict(layer.state_dict())
    plain = OPTIMIZERS[optimizer](twin.parameters())
    gradient, before = torch.randn(5, 6), layer.weight.detach().clone()
    slow = bits(mask)["weight"] == 0
    for step in range(3):
        moved_from = layer.weight.detach().clone()
        layer.weight.grad = twin.weight.grad = gradient
        kept = gradient.clone()
        driver.step()
        plain.step()
        assert layer.weight.grad is gradient
        assert torch.equal(gradient, kept)
        torch.testing.assert_close(layer.weight[~slow], twin.weight[~slow])
        assert torch.equal(layer.weight[slow], before[slow]) == (step < 2)
    if optimizer == "SGD":
        torch.testing.assert_close(layer.weight[slow], moved_from[slow] - 3 * 0.1 * gradient[slow])


def _shared(layer: nn.Linear) -> Tensor:
    neighbour = nn.Parameter(torch.zeros(5, 6))
    neighbour.grad = layer.weight.grad = torch.ones(5, 6)
    layer.neighbour = neighbour
    return neighbour.grad


def _expanded(layer: nn.Linear) -> Tensor:
    one = torch.ones(1)
    layer.weight.grad = one.expand(5, 6)
    return one


class Labelled(Tensor):
    """A subclass that adds nothing."""


def _subclass(layer: nn.Linear) -> Tensor:
    gradient = torch.ones(5, 6).as_subclass(Labelled)
    layer.weight.grad = gradient
    return gradient


@pytest.mark.parametrize("hand_over", [_shared, _expanded, _subclass])
def test_memory_that_somebody_else_sees_is_not_written_to(hand_over: Callable[[nn.Linear], Tensor]) -> None:
    layer, mask, driver = _masked()
    theirs, before = hand_over(layer), layer.weight.detach().clone()
    assert (theirs == 1).all()
    driver.step()
    assert (theirs == 1).all()
    assert torch.equal(layer.weight == before, bits(mask)["weight"] == 0)


def test_a_sparse_gradient_is_refused() -> None:
    layer, _mask, driver = _masked()
    layer.weight.grad = torch.ones(5, 6).to_sparse()
    with pytest.raises(RuntimeError, match=r"\(5, 6\) has a sparse gradient\..*make it dense"):
        driver.step()
