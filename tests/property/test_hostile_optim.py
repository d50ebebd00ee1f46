"""Whatever parts, shapes, gradients, rates and flags: every parameter moves as in a slow, literal reading."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import Module, Parameter, ParameterList
from torch.optim import SGD, AdamW, Optimizer, RMSprop

import mrreg

KINDS: list[tuple[Any, dict[str, Any]]] = [
    (SGD, {}),
    (SGD, {"weight_decay": 0.1, "maximize": True}),
    (SGD, {"momentum": 0.9, "weight_decay": 0.1}),
    (SGD, {"momentum": 0.9, "dampening": 0.5, "nesterov": False}),
    (SGD, {"momentum": 0.9, "nesterov": True}),
    (AdamW, {}),
    (RMSprop, {"momentum": 0.5}),
]
SHAPES = [(), (1,), (0, 3), (3, 2), (2, 3, 4, 1)]
LAYOUTS = ["contiguous", "transposed", "channels_last", "every second"]
WORDS = ["same", "none", "zero", "nan", "inf", "huge"]
RATES = [0.0, 1e-3, 0.1]

kinds = st.sampled_from(KINDS)
dtypes = st.sampled_from([torch.float32, torch.float64, torch.complex64])
periods = st.sampled_from([1, 2, 4])


def laid_out(value: Tensor, layout: str) -> Tensor:
    """The same values in another order of memory."""
    if layout == "channels_last" and value.dim() == 4:
        return value.contiguous(memory_format=torch.channels_last)
    if layout == "transposed" and value.dim() > 1:
        return value.mT.contiguous().mT
    if layout == "every second" and value.dim():
        return torch.stack([value, value], -1)[..., 0]
    return value


@st.composite
def parameters(draw: st.DrawFn) -> list[Parameter]:
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    made = []
    for shape in draw(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=3)):
        value = torch.randn(shape, generator=generator).to(draw(dtypes))
        made.append(Parameter(laid_out(value, draw(st.sampled_from(LAYOUTS)))))
    return made


class Mirror:
    """One part, literally: torch's own optimizer at sync steps, and its step once more at every other one."""

    def __init__(self, part: list[Parameter], kind: Any, options: dict[str, Any], period: int, lr: float) -> None:
        self.params = [Parameter(p.detach().clone()) for p in part]
        self.base: Optimizer = kind(self.params, lr=lr, **options)
        self.period = period
        self.directions: list[Tensor | None] = [None] * len(part)

    def step(self, is_due: bool, lr: float, grads: list[Tensor | None]) -> None:
        """With the gradients that everybody gets."""
        if not is_due:
            for p, direction in zip(self.params, self.directions, strict=True):
                if direction is not None:
                    p.data = p.data - lr * direction
            return
        before = [p.detach().clone() for p in self.params]
        for p, grad in zip(self.params, grads, strict=True):
            p.grad = None if grad is None else grad.clone()
        self.base.param_groups[0]["lr"] = lr
        self.base.step()
        self.directions = [self.direction(p, old, lr) for p, old in zip(self.params, before, strict=True)]

    def direction(self, p: Parameter, old: Tensor, lr: float) -> Tensor | None:
        """What the step took, per unit of lr."""
        group = self.base.param_groups[0]
        if p.grad is None:
            return None
        if type(self.base) is SGD and group["momentum"] and not group["nesterov"]:
            return torch.clone(self.base.state[p]["momentum_buffer"])
        if type(self.base) is SGD and not (group["weight_decay"] or group["nesterov"]):
            return p.grad
        return torch.zeros_like(p) if lr == 0 else (old - p.detach()) / lr


def gradient(p: Tensor, word: str, t: int) -> Tensor | None:
    if word == "none":
        return None
    grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(t)).to(p.dtype)
    if word == "zero":
        grad.zero_()
    if word in ("nan", "inf", "huge"):
        grad.view(-1)[:1] = {"nan": float("nan"), "inf": float("inf"), "huge": 1e30}[word]
    return grad


@st.composite
def schedules(draw: st.DrawFn) -> Iterator[tuple[float, list[str]]]:
    """For every step a rate, and a word for each parameter's gradient."""
    words = st.lists(st.sampled_from(["same"] * 6 + WORDS), min_size=9, max_size=9)
    return iter(draw(st.lists(st.tuples(st.sampled_from(RATES), words), max_size=7)))


@pytest.mark.filterwarnings("ignore::mrreg.errors.NoEffectWarning")  # it is right: nothing that is due has a gradient
@given(st.lists(st.tuples(parameters(), kinds, periods), min_size=1, max_size=3), schedules())
def test_every_step_is_the_literal_one(parts: Any, schedule: Iterator[tuple[float, list[str]]]) -> None:
    parts.append(([Parameter(torch.ones(2))], KINDS[0], 1))  # something must move at every step
    bases = [(kind(part, lr=0.1, **options), period) for part, (kind, options), period in parts]
    optimizer = mrreg.Multirate(bases, model=ParameterList(p for part, _, _ in parts for p in part))
    mirrors = [Mirror(part, kind, options, period, 0.1) for part, (kind, options), period in parts]
    t, rate_was_zero = 0, False
    for rate, words in schedule:
        groups = optimizer.param_groups
        grads, remaining = [], iter(words)
        for group, (part, _, _) in zip(groups, parts, strict=True):
            group["lr"] = rate
            grads.append([gradient(p, next(remaining, "same"), t) for p in part])
            for p, grad in zip(part, grads[-1], strict=True):
                p.grad = grad
        moves = any(grad is not None and (rate or grad.any()) for each in grads for grad in each)
        due = optimizer.due
        assert rate_was_zero or due == tuple(t % period == 0 for _, _, period in parts)
        optimizer.step()
        rate_was_zero |= rate == 0  # then some parts are due again at the next step, which other tests are about
        for mirror, is_due, each in zip(mirrors, due, grads, strict=True):
            if moves:
                mirror.step(is_due, rate, each)
        t += bool(moves)
        assert {group["clock"] for group in groups} == {t}
        for (part, _, _), mirror in zip(parts, mirrors, strict=True):
            for p, q in zip(part, mirror.params, strict=True):
                torch.testing.assert_close(p.detach(), q.detach(), rtol=2e-4, atol=1e-5, equal_nan=True)


class Loose(Module):
    """Three loose parameters; the forward says that a step begins."""

    def __init__(self) -> None:
        super().__init__()
        self.slow, self.other, self.fast = (Parameter(torch.full((3,), float(i))) for i in (1, 2, 3))

    def forward(self) -> Tensor:
        return self.fast + self.slow + self.other


@given(
    st.lists(st.sampled_from(["freeze", "thaw", "nothing", "close", "copy", "left out"]), max_size=8), st.integers(1, 4)
)
def test_flags_of_the_user_and_all_copies(events: list[str], k: int) -> None:
    """What the user freezes moves to its next sync step and then rests; nothing else is changed by flags."""
    net = Loose()
    parts = [(SGD([net.fast], lr=0.1), 1), (SGD([net.slow, net.other], lr=0.1, momentum=0.9), k)]
    optimizer: Any = mrreg.Multirate(parts, model=net)
    frozen = False
    for t, event in enumerate(events):
        due = t % k == 0
        if event in ("freeze", "thaw"):
            frozen = event == "freeze"
            net.slow.requires_grad_(not frozen)
        elif event == "close":
            optimizer.close()
        elif event == "copy":
            optimizer.load_state_dict(optimizer.state_dict())
        elif event == "left out":
            torch.autograd.backward(net().sum())
            optimizer.zero_grad()
        before = net.slow.detach().clone()
        torch.autograd.backward(net().sum())
        wanted = due or event == "close"  # which lasts until the next step
        assert [p.grad is not None for p in (net.fast, net.slow, net.other)] == [True, wanted and not frozen, wanted]
        optimizer.step()
        optimizer.zero_grad()
        assert optimizer.param_groups[0]["clock"] == t + 1
        assert torch.equal(net.slow, before) or not (frozen and due)
        assert [p.requires_grad for p in (net.fast, net.slow, net.other)] == [True, not frozen, True]
    net()
    del optimizer
    assert [p.requires_grad for p in (net.fast, net.slow, net.other)] == [True, not frozen, True]
