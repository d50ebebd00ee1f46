"""Masks on every kind of layer: each masked tensor changes the output, has a gradient where kept, none where slow."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.masks import attached, bits, held_bits, of, slow_entries, train_step
from torch import Tensor, nn

import mrreg

IDS = torch.tensor([[1, 2, 3, 0], [4, 5, 6, 7]])


class Tied(nn.Module):
    """An embedding whose weight is also the output layer's."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(8, 6), nn.Linear(6, 8, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        hidden: Tensor = self.embed(ids)
        logits: Tensor = self.out(hidden)
        return logits


class Positions(nn.Module):
    """A learned tensor added to the input: its gradient is the very tensor that goes on to the layers below."""

    def __init__(self) -> None:
        super().__init__()
        self.below, self.places = nn.Linear(6, 6), nn.Parameter(torch.randn(1, 4, 6))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.below(x) + self.places
        return y


class Attention(nn.MultiheadAttention):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:  # type: ignore[override]
        return super().forward(x, x, x, need_weights=False)


CASES: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {  # what torch's own inputs of tests/conformance lack
    "embedding": (lambda: nn.Embedding(8, 6, padding_idx=0), IDS),
    "lstm": (lambda: nn.LSTM(6, 5, 2, bidirectional=True, batch_first=True), torch.randn(3, 4, 6)),
    "attention kdim": (
        lambda: Attention(6, 2, kdim=6, vdim=6, add_bias_kv=True, batch_first=True),
        torch.randn(3, 4, 6),
    ),
    "encoder": (
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(6, 2, 8, 0.0, batch_first=True), 2),
        torch.randn(3, 4, 6),
    ),
    "tied": (Tied, IDS),
    "positions": (Positions, torch.randn(1, 4, 6)),
    "weight norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(6, 5)), torch.randn(3, 6)),
}


def _first(out: Any) -> Tensor:
    tensor: Tensor = out[0] if isinstance(out, tuple) else out
    return tensor


@pytest.mark.parametrize("case", CASES)
def test_equals_the_module_with_its_weights_zeroed_and_each_counts(case: str) -> None:
    make, x = CASES[case]
    module = make()
    mask, _optimizer = attached(copy.deepcopy(module))
    for (_, slow), target in zip(slow_entries(mask), of(mask).targets, strict=True):
        module.get_parameter(target.name).data[slow] = 0
    ours, theirs = _first(mask(x)), _first(module(x))
    assert torch.equal(ours, theirs)
    for out in (ours, theirs):
        out.square().sum().backward()  # type: ignore[no-untyped-call]
    for name, p in module.named_parameters():
        q = mask.get_parameter(name)
        slow = bits(mask)[name] == 0 if name in bits(mask) else torch.tensor(False)
        assert (p.grad is None) == (q.grad is None)
        if p.grad is not None and q.grad is not None:
            assert torch.allclose(q.grad, p.grad.masked_fill(slow, 0), atol=1e-6)
            assert not q.grad[slow.expand_as(q)].any()
    for target in of(mask).targets:
        alone, _optimizer = attached(make(), parameters=[target.name], p=0.7)
        assert not torch.equal(_first(alone(x)), _first(mrreg.unwrap(copy.deepcopy(alone))(x))), target.name


@pytest.mark.parametrize("case", CASES)
def test_every_masked_weight_trains_evaluation_is_dense_and_copies_go_on(case: str) -> None:
    make, x = CASES[case]
    module = make()
    plain = type(module).__name__ == "ParametrizedLinear"  # which torch cannot pickle
    mask, optimizer = attached(copy.deepcopy(module))
    for t in range(4):
        module.load_state_dict(mask.state_dict())
        assert torch.equal(_first(mask.eval()(x)), _first(module.eval()(x)))
        copied = copy.deepcopy(mask.train()) if t % 2 or plain else pickle.loads(pickle.dumps(mask.train()))
        assert not {p.data_ptr() for p in copied.parameters()} & {p.data_ptr() for p in mask.parameters()}
        twin = torch.optim.SGD(copied.parameters(), lr=0.01, momentum=0.9)
        twin.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        mrreg.attach(twin, copied)
        assert torch.equal(_first(copied(x)), _first(mask(x)))
        held = held_bits(mask, optimizer)
        before = [p.detach().clone() for p, _ in slow_entries(mask)]
        train_step(mask, optimizer, x)
        assert t == 2 or all(torch.equal(read(), bits) for read, bits in held)
        assert all(not torch.equal(p, b) for (p, _), b in zip(slow_entries(mask), before, strict=True))


def test_rescaled_masks_divide_what_is_kept() -> None:
    mask, _optimizer = attached(nn.Linear(6, 5, dtype=torch.float64), rescale=True, p=0.25)
    weight = mask.get_parameter("weight")
    (_, slow), *_ = slow_entries(mask)
    x = torch.randn(3, 6, dtype=torch.float64)
    kept = weight.detach().masked_fill(slow, 0) / 0.75
    assert torch.allclose(mask(x), nn.functional.linear(x, kept, mask.get_parameter("bias")), rtol=1e-14)
    assert torch.autograd.gradcheck(mask, (x.requires_grad_(),))
    everything, _optimizer = attached(nn.Linear(6, 5), rescale=True, p=1.0)
    assert torch.equal(everything(torch.randn(2, 6)), everything.get_parameter("bias").expand(2, 5))


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_empty_parameters() -> None:
    for layer in (nn.Linear(0, 3), nn.Linear(3, 0), nn.Embedding(0, 2)):
        for structure in ("weight", "input", "output"):
            mask = mrreg.MultirateMask(copy.deepcopy(layer), structure=structure)
            optimizer = torch.optim.SGD(mask.parameters(), lr=0.1, momentum=0.9)
            mrreg.attach(optimizer, mask)
            if not isinstance(layer, nn.Embedding):
                train_step(mask, optimizer, torch.ones(2, layer.in_features))


def test_transforms_and_higher_derivatives() -> None:
    mask, _optimizer = attached(nn.Linear(6, 5, dtype=torch.float64))
    x = torch.randn(3, 6, dtype=torch.float64)
    parameters: dict[str, Any] = dict(mask.named_parameters())

    def loss(values: dict[str, Any], x: Tensor) -> Tensor:
        out: Tensor = torch.func.functional_call(mask, values, (x,))
        return out.square().mean()

    grads = torch.func.grad(loss)(parameters, x)
    mask(x).square().mean().backward()
    weight = mask.get_parameter("weight")
    assert weight.grad is not None
    assert torch.allclose(grads["weight"], weight.grad)
    each = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, x)
    assert torch.allclose(each["weight"].mean(0), weight.grad)
    (once,) = torch.autograd.grad(mask(x).square().mean(), weight, create_graph=True)
    (twice,) = torch.autograd.grad(once.square().sum(), weight)
    assert not twice[bits(mask)["weight"] == 0].any()
    assert twice.any()


def test_attributes_of_a_parameter_are_seen_on_masked_steps() -> None:
    class Reading(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * self.weight.factor  # type: ignore[attr-defined, no-any-return]

    layer = Reading(4, 3)
    layer.weight.factor = 2.0  # type: ignore[attr-defined]
    mask, _optimizer = attached(layer)
    expected = 2 * nn.functional.linear(torch.ones(1, 4), layer.weight * bits(mask)["weight"].abs(), layer.bias)
    torch.testing.assert_close(mask(torch.ones(1, 4)), expected)
