"""Activation checkpointing around a mask, and inside one."""

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.masks import train_step
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import mrreg


def _attached(module: nn.Module, **options: Any) -> tuple[mrreg.MultirateMask, torch.optim.Optimizer]:
    mask = mrreg.MultirateMask(module, **{"k": 3, **options})
    optimizer = torch.optim.SGD(mask.parameters(), lr=0.01, momentum=0.9)
    mrreg.attach(optimizer, mask)
    return mask, optimizer


class Checkpointed(nn.Module):
    """Checkpoints its first layer, or all of another module."""

    def __init__(self, inner: nn.Module, reentrant: bool) -> None:
        super().__init__()
        self.inner, self.out, self.reentrant = inner, nn.Linear(5, 2), reentrant

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.out(checkpoint(self.inner, x, use_reentrant=self.reentrant))
        return y


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_around_a_mask_is_right(reentrant: bool) -> None:
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 5))
    plain = nn.Sequential(mrreg.MultirateMask(copy.deepcopy(inner)), nn.Linear(5, 2))
    again = Checkpointed(mrreg.MultirateMask(inner), reentrant)
    again.out.load_state_dict(plain[1].state_dict())
    for model in (plain, again):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with mrreg.attach(optimizer, model):
            for t in range(7):
                x = torch.randn(3, 6, generator=torch.Generator().manual_seed(t)).requires_grad_()
                train_step(model, optimizer, x)
    assert all(torch.equal(p, q) for p, q in zip(plain.parameters(), again.parameters(), strict=True))


Run = Callable[..., Tensor]


class CheckpointedLayer(nn.Linear):
    """A layer without others inside that checkpoints what it computes."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__(6, 5)
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = checkpoint(lambda z: torch.tanh(z @ self.weight.T), x, use_reentrant=self.reentrant)
        return y


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("around", [False, True])
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_inside_a_mask_is_refused(reentrant: bool, around: bool, single: bool) -> None:
    mask, _optimizer = _attached(CheckpointedLayer(reentrant) if single else Checkpointed(nn.Linear(6, 5), reentrant))
    x = torch.randn(3, 6, requires_grad=True)
    with pytest.raises(RuntimeError, match="checkpoint around the MultirateMask"):
        checkpoint(mask, x, use_reentrant=False) if around and not reentrant else mask(x)
    nn.Linear(6, 5)(x).sum().backward()  # hooks on saved tensors work as before
    assert checkpoint(nn.Linear(6, 5), x, use_reentrant=False).shape == (3, 5)


def _by_method(layer: nn.TransformerEncoderLayer, run: Run) -> None:
    inner = layer._ff_block
    layer._ff_block = lambda x: run(inner, x)  # type: ignore[method-assign]


def _by_forward(layer: nn.TransformerEncoderLayer, run: Run) -> None:
    inner = layer.linear1.forward
    layer.linear1.forward = lambda input: run(inner, input)  # type: ignore[method-assign]


@pytest.mark.parametrize("put", [_by_method, _by_forward])
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_put_into_layers_of_torch_is_refused(put: Callable[..., None], reentrant: bool) -> None:
    layer = nn.TransformerEncoderLayer(6, 2, 8, 0.0, batch_first=True)
    put(layer, functools.partial(checkpoint, use_reentrant=reentrant))
    mask, _optimizer = _attached(layer)
    with pytest.raises(RuntimeError, match="checkpoint around the MultirateMask"):
        mask(torch.randn(3, 4, 6, requires_grad=True))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_by_a_patched_class_is_refused(reentrant: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    mask, _optimizer = _attached(nn.Sequential(nn.Linear(6, 5), nn.Tanh()))
    x, inner = torch.randn(3, 6, requires_grad=True), nn.Linear.forward
    monkeypatch.setattr(nn.Linear, "forward", lambda *args: checkpoint(inner, *args, use_reentrant=reentrant))
    with pytest.raises(RuntimeError, match="checkpoint around the MultirateMask"):
        mask(x)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_inside_that_uses_no_masked_weight_is_right(reentrant: bool) -> None:
    layers = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))
    mask, _optimizer = _attached(layers)
    x = torch.randn(3, 6, requires_grad=True)
    expected = torch.autograd.grad(mask(x).square().sum(), [x, *layers.parameters()])
    tanh = layers[1].forward
    layers[1].forward = lambda input: checkpoint(tanh, input, use_reentrant=reentrant)
    mask(x).square().sum().backward()
    assert all(p.grad is not None and torch.equal(p.grad, g) for p, g in zip([x, *layers.parameters()], expected))  # noqa: B905


class Block(nn.Module):
    """A module of somebody's own."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.calls = nn.Linear(6, 6), nn.Linear(6, 6), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return torch.tanh(self.b(torch.tanh(self.a(x))))


def test_what_is_around_a_mask_sees_all_that_the_module_saves() -> None:
    x = torch.randn(3, 6, requires_grad=True)
    found = []
    for block in (plain := Block(), Block()):
        model, _optimizer = (block, None) if block is plain else _attached(block)
        checkpoint(model, x, use_reentrant=False).sum().backward()
        seen: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, seen=seen: seen.append(t.numel()) or t, lambda t: t):  # type: ignore[misc]
            model(x)
        with torch.autograd.graph.save_on_cpu():
            model(x).sum().backward()
        found.append((block.calls, seen))
    assert found[0] == found[1]
    assert found[0][0] == 4
