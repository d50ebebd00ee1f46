"""Masked linear layers on inputs without gradient: the numbers of the long way, in the memory of the masked weight."""

from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad, gradcheck, gradgradcheck

import mrreg
from mrreg import MultirateMask
from mrreg.masks import fast_linear as linear
from mrreg.masks.masked_tensor import MaskBuffers

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "rescaled": {"rescale": True},
    "input units": {"structure": "input"},
    "output units": {"structure": "output"},
    "no bias": {"bias": False},
    "frozen bias": {"frozen": "bias"},
    "bfloat16": {"dtype": torch.bfloat16},
    "no rows": {"rows": 0},
    "strided weight": {"strided": True},
}


def _masked(
    bias: bool = True, frozen: str = "", strided: bool = False, dtype: torch.dtype = torch.float32, **options: Any
) -> tuple[MultirateMask, torch.optim.Optimizer]:
    torch.manual_seed(0)
    layer = nn.Linear(6, 5, bias=bias, dtype=dtype)
    if strided:
        layer.weight = nn.Parameter(torch.randn(6, 5).t())
    if frozen:
        layer.get_parameter(frozen).requires_grad_(False)
    mask = MultirateMask(layer, p=0.5, k=3, **options)
    optimizer = torch.optim.SGD(mask.parameters(), lr=0.1)
    mrreg.attach(optimizer, mask)
    return mask, optimizer


def _train(case: dict[str, Any]) -> tuple[list[Tensor], MultirateMask]:
    """Outputs, gradients and weights of seven steps."""
    rows, dtype = case.get("rows", 4), case.get("dtype", torch.float32)
    mask, optimizer = _masked(**{name: value for name, value in case.items() if name != "rows"})
    seen = []
    for _ in range(7):
        out = mask(torch.randn(rows, 6).to(dtype))
        optimizer.zero_grad()
        out.square().sum().backward()
        seen += [out.detach(), *(p.grad.clone() for p in mask.parameters() if p.grad is not None)]
        optimizer.step()
    return seen + [p.detach() for p in mask.parameters()], mask


@pytest.mark.parametrize("case", CASES)
def test_it_computes_what_the_long_way_computes(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = Mock(wraps=linear.linear)
    monkeypatch.setattr(linear, "linear", taken)
    ours, _ = _train(CASES[case])
    assert taken.call_count == 5  # of seven steps, two are joint steps
    monkeypatch.setattr(linear, "applies", lambda *_: False)
    theirs, _ = _train(CASES[case])
    torch.testing.assert_close(ours, theirs)


def test_the_gradient_lies_where_the_masked_weight_was() -> None:
    mask, optimizer = _masked()
    addresses = set()
    for _ in range(7):
        masked = mask._masking
        mask(torch.randn(4, 6)).sum().backward()
        if masked:
            addresses.add(mask.weight.grad.data_ptr())
        optimizer.step()
        optimizer.zero_grad()
    assert addresses == {mask._mask_buffers["weight"].values._own.data_ptr()}


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


def test_two_forwards_before_one_backward() -> None:
    mask, _optimizer = _masked()
    one, two = torch.randn(4, 6), torch.randn(4, 6)
    (mask(one).square().sum() + mask(two).square().sum()).backward()
    both = mask.weight.grad.clone()
    parts = [torch.autograd.grad(mask(x).square().sum(), mask.weight)[0] for x in (one, two)]
    torch.testing.assert_close(both, parts[0] + parts[1])


def test_derivatives_of_first_and_second_order() -> None:
    x, bits = torch.randn(3, 4, dtype=torch.double), -torch.randint(2, (2, 4))
    weight = torch.randn(2, 4, dtype=torch.double, requires_grad=True)
    bias = torch.randn(2, dtype=torch.double, requires_grad=True)

    def call(weight: Tensor, bias: Tensor) -> Tensor:
        return linear.linear(x, weight, bias, bits, 2.0, MaskBuffers()).sin()

    assert gradcheck(call, (weight, bias), check_batched_grad=True)
    assert gradgradcheck(call, (weight, bias))


def test_an_input_that_changes_before_the_backward_is_an_error() -> None:
    mask, _optimizer = _masked()
    x = torch.randn(4, 6)
    loss = mask(x).sum()
    x.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_saved_inputs_pass_through_hooks() -> None:
    mask, _optimizer = _masked()
    pack = Mock(side_effect=lambda saved: saved)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
        mask(torch.randn(4, 6)).sum().backward()
    assert [call.args[0].shape for call in pack.call_args_list] == [(4, 6)]


def test_jacobians_by_vmap_over_the_backward() -> None:
    mask, _optimizer = _masked()
    out, directions = mask(torch.randn(4, 6)), torch.randn(3, 4, 5)

    def gradient(direction: Tensor) -> Tensor:
        found: Tensor = torch.autograd.grad(out, mask.weight, direction, retain_graph=True)[0]
        return found

    torch.testing.assert_close(torch.vmap(gradient)(directions), torch.stack([*map(gradient, directions)]))


def test_a_model_that_is_cast_before_its_backward() -> None:
    mask, _optimizer = _masked()
    x = torch.randn(4, 6)
    (expected,) = torch.autograd.grad(mask(x).square().sum(), mask.weight)
    loss = mask(x).square().sum()
    mask.double()
    loss.backward()
    torch.testing.assert_close(mask.weight.grad, expected.to(mask.weight.grad.dtype))


def test_where_more_is_asked_of_a_graph_the_long_way_is_taken() -> None:
    x, weight = torch.randn(4, 6), nn.Parameter(torch.randn(5, 6))
    assert linear.applies(x, weight)
    assert not linear.applies(x.clone().requires_grad_(), weight)
    assert not linear.applies(x[None], weight)
    assert not linear.applies(x.to("meta"), weight)
    assert not linear.applies(x.to_sparse(), weight)
    assert not linear.applies(x, weight.detach())
    assert not linear.applies(nn.Parameter(x), weight)
    with torch.inference_mode():
        assert not linear.applies(x, weight)
    with torch.autocast("cpu", torch.bfloat16):
        assert not linear.applies(x, weight)
    with forward_ad.dual_level():
        assert not linear.applies(x, weight)
    assert linear.applies(x, weight)


@pytest.mark.filterwarnings("ignore:`torch.jit.script`")
def test_forward_derivatives_still_work() -> None:
    mask, _optimizer = _masked()
    x, tangent = torch.randn(4, 6), torch.randn(4, 6)
    with forward_ad.dual_level():
        out = forward_ad.unpack_dual(mask(forward_ad.make_dual(x, tangent)))  # type: ignore[no-untyped-call]
    expected = mask(tangent) - mask(torch.zeros(4, 6))
    torch.testing.assert_close(out.tangent, expected)
