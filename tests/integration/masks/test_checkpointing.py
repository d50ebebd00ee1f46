"""Activation checkpointing around a mask, and inside one."""

import copy
import functools
from typing import Any

import pytest
import torch
from helpers.masks import attached, train_step
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import mrreg


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


class Encoder(nn.TransformerEncoderLayer):
    """A layer of torch that checkpoints the half that is named, or its first linear layer."""

    def __init__(self, half: str = "", reentrant: bool = False) -> None:
        torch.manual_seed(0)
        super().__init__(6, 2, 16, 0.1, batch_first=True)
        self.part, self.reentrant = half, reentrant

    def _ff_block(self, x: Tensor) -> Tensor:
        inner = super()._ff_block
        y: Tensor = checkpoint(inner, x, use_reentrant=self.reentrant) if self.part == "feed" else inner(x)
        return y

    def _sa_block(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        inner = functools.partial(lambda block, x: block(x, *args, **kwargs), super()._sa_block)
        y: Tensor = checkpoint(inner, x, use_reentrant=self.reentrant) if self.part == "attend" else inner(x)
        return y


def _trained(layer: nn.Module, kind: str, x: Tensor, steps: int = 4) -> list[Tensor]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 6), layer, nn.Linear(6, 3))
    if kind == "thin":
        model, report = mrreg.thin(model, p=0.5, k=3, example_inputs=x)
        assert sum(entry.admitted for entry in report.values()) > 1
    else:
        mrreg.MultirateMask(model, k=3, structure=kind)  # type: ignore[arg-type]
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    mrreg.attach(optimizer, model)
    for t in range(steps):
        for part in range(2):
            torch.manual_seed(10 * t + part)
            loss = model(torch.randn_like(x)).square().mean()
            with torch.no_grad():
                model.eval()(x)
            model.train()
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return [*model.parameters(), *model.buffers()]


@pytest.mark.parametrize(
    ("kind", "half", "reentrant"),
    [("thin", "feed", False), ("thin", "attend", True), ("weight", "feed", True), ("input", "attend", False)],
)
def test_checkpointing_inside_equals_none_to_the_bit(kind: str, half: str, reentrant: bool) -> None:
    """Attributes that count heads included, with evaluation between the passes."""
    expected, found = (_trained(layer, kind, torch.ones(3, 4, 6)) for layer in (Encoder(), Encoder(half, reentrant)))
    assert all(torch.equal(one, two) for one, two in zip(expected, found, strict=True))


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_backward_pass_after_the_step_is_refused_and_leaves_nothing(reentrant: bool) -> None:
    mask, optimizer = attached(Checkpointed(nn.Linear(6, 5), reentrant))
    x = torch.randn(3, 6, requires_grad=True)
    late = mask(x).sum()
    train_step(mask, optimizer, x)
    with pytest.raises(RuntimeError, match=r"an optimizer step came between.*call backward\(\) before step"):
        late.backward()
    train_step(mask, optimizer, x)


def test_a_backward_pass_that_fails_shows_whole_weights_afterwards() -> None:
    layer, x = Encoder("attend"), torch.randn(3, 4, 6, requires_grad=True)
    model, _ = mrreg.thin(nn.Sequential(nn.Linear(6, 6), layer), p=0.5, k=3, example_inputs=x.detach())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    mrreg.attach(optimizer, model)
    expected = model.eval()(x)
    model.train()
    hidden: list[Tensor] = []
    handle = model[0].register_forward_hook(lambda *args: hidden.append(args[-1]))
    out = model(x)
    hidden[0].register_hook(lambda _: 1 / 0)  # type: ignore[no-untyped-call]
    with pytest.raises(ZeroDivisionError):
        out.sum().backward()
    handle.remove()
    assert torch.equal(model.eval()(x), expected)
    assert type(model[0].weight) is nn.Parameter


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing_enable:FutureWarning")
def test_a_language_model_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=20, n_positions=8, n_embd=16, n_layer=2, n_head=4, resid_pdrop=0.0)
    plain, tokens = transformers.GPT2LMHeadModel(config), torch.arange(8)[None]
    plain, _ = mrreg.thin(plain, p=0.5, k=3, example_inputs={"input_ids": tokens, "labels": tokens})
    again = copy.deepcopy(plain)
    again.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for model in (plain, again):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with mrreg.attach(optimizer, model.train()):
            for t in range(3):
                torch.manual_seed(t)
                model(input_ids=tokens, labels=tokens).loss.backward()
                optimizer.step()
                optimizer.zero_grad()
    assert all(torch.equal(p, q) for p, q in zip(plain.parameters(), again.parameters(), strict=True))
