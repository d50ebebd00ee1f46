"""A bare Linear is computed without calling it: the same numbers as through a call, whatever is asked of the graph."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

import mrreg
from mrreg import MultirateMask

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "rescaled": {"rescale": True},
    "masked bias": {"parameters": ["weight", "bias"]},
    "input units": {"structure": "input"},
    "no bias": {"bias": False},
    "bfloat16": {"dtype": torch.bfloat16},
    "strided weight": {"strided": True},
}


def _masked(
    bias: bool = True, strided: bool = False, dtype: torch.dtype = torch.float32, called: bool = False, **options: Any
) -> tuple[MultirateMask, torch.optim.Optimizer]:
    torch.manual_seed(0)
    layer = nn.Linear(6, 5, bias=bias, dtype=dtype)
    if strided:
        layer.weight = nn.Parameter(torch.randn(6, 5).t())
    if called:  # a hook must be called
        layer.register_forward_hook(lambda *_: None)
    mask = MultirateMask(layer, p=0.5, k=3, **options)
    optimizer = torch.optim.SGD(mask.parameters(), lr=0.1)
    mrreg.attach(optimizer, mask)
    return mask, optimizer


def _train(case: dict[str, Any], called: bool) -> list[Tensor]:
    """Outputs, gradients and weights of seven steps."""
    mask, optimizer = _masked(called=called, **case)
    seen = []
    for _ in range(7):
        out = mask(torch.randn(4, 6).to(case.get("dtype", torch.float32)))
        optimizer.zero_grad()
        out.square().sum().backward()
        seen += [out.detach(), *(p.grad.clone() for p in mask.parameters() if p.grad is not None)]
        optimizer.step()
    return seen + [p.detach() for p in mask.parameters()]


@pytest.mark.parametrize("case", CASES)
def test_it_computes_what_a_call_computes(case: str) -> None:
    assert all(map(torch.equal, _train(CASES[case], called=False), _train(CASES[case], called=True)))


def test_a_graph_that_is_kept_gives_the_same_gradient_again() -> None:
    mask, _optimizer = _masked()
    loss = mask(torch.randn(4, 6)).square().sum()
    loss.backward(retain_graph=True)
    first = mask.weight.grad
    before = first.clone()
    (again,) = torch.autograd.grad(loss, mask.weight, retain_graph=True)
    assert torch.equal(again, before)
    assert torch.equal(first, before)
    loss.backward()
    assert torch.equal(mask.weight.grad, 2 * before)


def test_jacobians_by_vmap_over_the_backward() -> None:
    mask, _optimizer = _masked()
    out, directions = mask(torch.randn(4, 6)), torch.randn(3, 4, 5)

    def gradient(direction: Tensor) -> Tensor:
        found: Tensor = torch.autograd.grad(out, mask.weight, direction, retain_graph=True)[0]
        return found

    torch.testing.assert_close(torch.vmap(gradient)(directions), torch.stack([*map(gradient, directions)]))


@pytest.mark.filterwarnings("ignore:`torch.jit.script`")
def test_forward_derivatives() -> None:
    mask, _optimizer = _masked()
    x, tangent = torch.randn(4, 6), torch.randn(4, 6)
    with forward_ad.dual_level():
        out = forward_ad.unpack_dual(mask(forward_ad.make_dual(x, tangent)))  # type: ignore[no-untyped-call]
    expected = mask(tangent) - mask(torch.zeros(4, 6))
    torch.testing.assert_close(out.tangent, expected)


def test_a_layer_that_is_watched_is_called() -> None:
    mask, _optimizer = _masked()
    seen = []
    handle = nn.modules.module.register_module_forward_hook(lambda module, *_: seen.append(type(module)))
    mask(torch.randn(4, 6))
    handle.remove()
    assert nn.Linear in seen
