"""Held entries and their state do not change by a bit, whatever the optimizer and whatever it is called with."""

import copy
from collections.abc import Callable
from itertools import chain, cycle
from typing import Any

import pytest
import torch
from helpers.masks import (
    batch,
    bits,
    held_bits,
    loss_of,
    masks,
    mlp,
    of,
    plain_mlp,
    same_bits,
    slow_entries,
    train,
    train_step,
)
from torch import nn
from torch.optim import Optimizer

import mrreg
from mrreg.masks.entries import as_bits

Make = Callable[[Any], Optimizer]


class Decaying(torch.optim.SGD):
    """A subclass that goes on after the step that it overrides, where torch runs the hooks again."""

    def __init__(self, params: Any, rate: float = 0.99) -> None:
        torch.optim.SGD([torch.zeros(1)], lr=0.1)  # torch hooks the class of the first instance
        super().__init__(params, lr=0.1, momentum=0.9)
        self.rate = rate

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        for p in self.param_groups[0]["params"]:
            p.mul_(self.rate)
        self.zero_grad()
        return loss


OPTIMIZERS: dict[str, Make] = {  # beside those of property/test_hostile_masks.py
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "sgd dampening": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.5),
    "sgd tensor lr": lambda p: torch.optim.SGD(p, lr=torch.tensor(0.1), momentum=0.9, foreach=False),
    "sgd fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1, fused=True),
    "adam foreach": lambda p: torch.optim.Adam(p, lr=0.1, foreach=True, weight_decay=0.1),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=0.1, fused=True, amsgrad=True),
    "adamw tensor lr": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.1), foreach=False),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.1, weight_decay=0.1),
    "adadelta": lambda p: torch.optim.Adadelta(p, lr=0.1, weight_decay=0.1),
    "radam": lambda p: torch.optim.RAdam(p, lr=0.1, weight_decay=0.1),
    "adamax": lambda p: torch.optim.Adamax(p, lr=0.1, weight_decay=0.1),
    "rprop": lambda p: torch.optim.Rprop(p, lr=0.1),
    "asgd": lambda p: torch.optim.ASGD(p, lr=0.1, weight_decay=0.1),
    "more after super().step()": Decaying,
}


def driven(make: Make = OPTIMIZERS["sgd fused"], **options: Any) -> tuple[nn.Sequential, Any]:
    model = mlp(**options)
    optimizer = make(model.parameters())
    mrreg.attach(optimizer, model)
    return model, optimizer


def as_they_were(held: list[tuple[Callable[[], torch.Tensor], torch.Tensor]]) -> bool:
    return bool(held) and all(torch.equal(read(), before) for read, before in held)


@pytest.mark.parametrize(("name", "structure"), [*zip(OPTIMIZERS, cycle(["weight", "output"]))])
def test_held_entries_and_their_state_do_not_change(name: str, structure: str) -> None:
    """Nor do the signs of zeros among them, which the second cycle begins with."""
    model, optimizer = driven(OPTIMIZERS[name], k=3, structure=structure)
    for t in range(6):
        for p, slow in chain.from_iterable(map(slow_entries, masks(model))) if t == 3 else ():
            p.data[slow] = torch.where(p > 0, 0.0, -0.0)[slow]
        before = [p.detach().clone() for p in model.parameters()]
        held = held_bits(model, optimizer)
        masked = of(masks(model)[0]).masking
        train_step(model, optimizer, batch(t))
        assert masked == (t % 3 < 2)
        assert not masked or as_they_were(held)
        moved = [not torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True)]
        assert moved[0]
        assert moved[2]


@pytest.mark.parametrize(("name", "options"), [*zip(OPTIMIZERS, cycle([{"p": 0.5, "k": 1}, {"p": 0.0, "k": 3}]))])
def test_without_masked_steps_it_is_ordinary_training_bit_for_bit(name: str, options: dict[str, Any]) -> None:
    (model, ours), plain = driven(OPTIMIZERS[name], **options), plain_mlp()
    assert train(model, ours, 5) == train(plain, OPTIMIZERS[name](plain.parameters()), 5)
    assert same_bits(model, plain)


class Minimal(Optimizer):
    """Takes no closure."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})
        self.kept = list(self.param_groups[0]["params"])

    def parameters(self) -> list[Any]:
        return self.param_groups[0]["params"]  # type: ignore[no-any-return]

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for p in self.parameters():
            if p.grad is not None:
                p.sub_(p.grad, alpha=0.1)


class Selfish(Minimal):
    """Steps on parameters that it keeps for itself."""

    def parameters(self) -> list[Any]:
        return self.kept


def test_a_hook_that_comes_after_attach_writes_gradients_before_they_are_gathered() -> None:
    model, optimizer = driven(Minimal)
    optimizer.register_step_pre_hook(lambda *_: nn.utils.clip_grad_value_(model.parameters(), 0.0))
    before = copy.deepcopy(model.state_dict())
    train(model, optimizer, 2)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert optimizer.param_groups[0]["mask_clock"] == 2


def test_an_optimizer_that_steps_on_a_list_of_its_own_is_refused() -> None:
    with pytest.raises(TypeError, match="does not step on the parameters in its groups, but on some that it keeps"):
        driven(Selfish)


def test_a_step_that_calls_super_counts_once() -> None:
    model, ours = driven(lambda p: Decaying(p, rate=1.0))
    twin, theirs = driven(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9))
    assert train(model, ours, 7) == pytest.approx(train(twin, theirs, 7), rel=1e-5)
    assert ours.param_groups[0]["mask_clock"] == 7
    assert all(p.grad is None for p in model.parameters())
    torch.testing.assert_close(model.state_dict(), twin.state_dict())  # what a subclass does is measured, not known


@pytest.mark.parametrize("then", ["step", "detach", "load"])
def test_what_is_held_survives_a_step_that_fails_half_way(then: str) -> None:
    model = mlp(k=6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    handle = mrreg.attach(optimizer, model)
    train(model, optimizer, 7)
    held, saved = held_bits(model, optimizer), copy.deepcopy(optimizer.state_dict())
    optimizer.param_groups[0]["lr"] = "broken"
    with pytest.raises(TypeError):
        train_step(model, optimizer, batch(7))
    optimizer.param_groups[0]["lr"] = 0.1
    if then == "detach":
        handle.remove()
    elif then == "load":
        optimizer.load_state_dict(saved)
    if then != "detach":
        train_step(model, optimizer, batch(8))
    assert as_they_were(held)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_the_forward_after_a_step_that_failed_gives_the_groups_their_parameters_back(set_to_none: bool) -> None:
    """Those who clip, or unscale, what is in the groups find the gradients of the new loss there, and those alone."""
    model, optimizer = driven(OPTIMIZERS["sgd"], k=6)
    train(model, optimizer, 1)
    optimizer.param_groups[0]["lr"] = "broken"
    with pytest.raises(TypeError):
        train_step(model, optimizer, batch(1))
    optimizer.param_groups[0]["lr"] = 0.1
    optimizer.zero_grad(set_to_none=set_to_none)
    loss = loss_of(model(batch(2)))
    expected = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
    loss.backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close([p.grad for p in optimizer.param_groups[0]["params"]], list(expected))


@pytest.mark.parametrize("lr", [0.1, torch.tensor(0.1)])
def test_calls_that_are_not_steps_do_not_move_the_clock(lr: Any) -> None:
    model, optimizer = driven(lambda p: torch.optim.AdamW(p, lr=lr))
    group = optimizer.param_groups[0]
    optimizer.step()  # no gradient at all
    assert group["mask_clock"] == 0
    before = [p.detach().clone() for p in model.parameters()]
    for p in model.parameters():  # torch.distributed.checkpoint makes state like this
        p.grad = torch.zeros_like(p)
    group["lr"] = torch.tensor(0.0) if isinstance(lr, torch.Tensor) else 0.0
    optimizer.step()
    assert group["mask_clock"] == 0
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
    train(model, optimizer, 1)  # a warm-up step with lr = 0 and real gradients
    assert group["mask_clock"] == 1


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_skipped_by_the_scaler_does_not_count(fused: bool) -> None:
    model, optimizer = driven(lambda p: torch.optim.AdamW(p, lr=0.1, fused=fused))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    clocks = []
    for t in range(4):
        optimizer.zero_grad()
        loss = loss_of(model(batch(t)))
        scaler.scale(loss * (float("inf") if t == 1 else 1.0)).backward()  # type: ignore[no-untyped-call]
        held = [p.grad for p in model.parameters()]
        before = [p.detach().clone() for p in model.parameters()]
        scaler.step(optimizer)
        scaler.update()
        assert all(p.grad is g for p, g in zip(model.parameters(), held, strict=True))
        assert t == 1 or all(g is not None and g.abs().max() < 10 for g in held)  # unscaled
        clocks.append(optimizer.param_groups[0]["mask_clock"])
        if t == 1:
            assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
    assert clocks == [1, 1, 2, 3]


@pytest.mark.parametrize("set_to_none", [True, False])
def test_accumulation_over_several_forwards_is_one_step(set_to_none: bool) -> None:
    """Gradients of held entries are zero, those of two halves add up, and clipping cannot move what is held."""
    (model, ours), (twin, theirs) = (driven(OPTIMIZERS["sgd"], dtype=torch.float64) for _ in range(2))
    for t in range(6):
        ours.zero_grad(set_to_none=set_to_none)
        for half in batch(t, torch.float64).chunk(2):
            (loss_of(model(half)) / 2).backward()  # type: ignore[no-untyped-call]
        held = held_bits(model, ours)
        for p, slow in slow_entries(masks(model)[0]) if t % 3 < 2 else ():
            assert p.grad is not None
            assert not p.grad[slow].any()
        ours.step()
        assert t % 3 == 2 or as_they_were(held)
        train_step(twin, theirs, batch(t, torch.float64))
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(p, q, rtol=1e-12)
    held = held_bits(model, ours)
    (model(batch(0, torch.float64)).square().mean() * float("nan")).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.01)  # multiplies everything by NaN
    ours.step()
    assert as_they_were(held)


def test_averages_see_true_weights_whenever_their_hook_was_registered() -> None:
    model: Any = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    seen: list[torch.Tensor] = []

    def look(*_: Any) -> None:
        seen.append(model[0].weight.detach().clone())

    optimizer.register_step_post_hook(look)
    mrreg.attach(optimizer, model)
    optimizer.register_step_post_hook(look)
    for t in range(6):
        train_step(model, optimizer, batch(t))
        assert all(torch.equal(as_bits(each), as_bits(model[0].weight.detach())) for each in seen[-2:])


@pytest.mark.filterwarnings("ignore:.*the fast part comes before")
def test_composes_with_the_multirate_optimizer() -> None:
    """A masked part that becomes slow is refused: drift along momentum would move what the masks hold."""
    model = nn.Sequential(mlp(), nn.Linear(3, 3))
    optimizer = mrreg.MultirateSGD(model, lr=0.1, k=5, fast=model[0].parameters(), momentum=0.9)
    mrreg.attach(optimizer, model)
    for t in range(4):
        held = held_bits(model, optimizer)
        train_step(model, optimizer, batch(t))
        assert {group["mask_clock"] for group in optimizer.param_groups} == {t + 1}
        assert t % 3 == 2 or as_they_were(held)
    masked = next(group for group in optimizer.param_groups if group["period"] == 1)
    masked["period"] = 2
    before = [p.clone() for p in model.parameters()]
    with pytest.raises(ValueError, match="part of period 1, got 2"):
        train(model, optimizer, range(4, 5))
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))


@pytest.mark.parametrize(("name", "value"), [("p", 0.0), ("p", 0.9), ("k", 2), ("k", 1)])
def test_p_and_k_may_change_while_training(name: str, value: Any) -> None:
    """A change of p counts, and rescales, from the next step's masks on; what is masked is held in any case."""
    model, optimizer = driven(k=4, rescale=True)
    for t in range(12):
        if t == 5:
            before = model(batch(0))
            for each in masks(model):
                setattr(of(each), name, value)
            assert torch.equal(model(batch(0)), before)
        if t == 6 and value == 0.9:
            layer: Any = model[0]
            weight = layer.weight * (bits(layer)["weight"] != 0) * 10
            torch.testing.assert_close(layer(batch(1)), nn.functional.linear(batch(1), weight, layer.bias))
        held = held_bits(model, optimizer) if of(masks(model)[0]).masking else []
        train_step(model, optimizer, batch(t))
        assert not held or as_they_were(held)
    mask = of(masks(model)[0])
    assert mask.masking == (mask.p > 0 and 12 % mask.k < mask.k - 1)


def test_boost_may_change_at_any_step() -> None:
    """On the joint step itself too, after a cycle that boosted nothing: it scales the step of slow entries alone."""
    model, optimizer = driven(OPTIMIZERS["sgd"], k=2, boost=1)
    ((weight, slow),) = slow_entries(masks(model)[0])
    train(model, optimizer, 1)
    of(masks(model)[0]).boost = 5
    before = weight.detach().clone()
    train(model, optimizer, range(1, 2))
    assert weight.grad is not None
    factor = torch.where(slow, 5.0, 1.0)
    assert torch.allclose(weight, before - 0.1 * factor * weight.grad, atol=1e-7)
