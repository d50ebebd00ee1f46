"""Held entries and their state do not change by a bit, whatever the optimizer; everything else does."""

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
OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "sgd maximize": lambda p: torch.optim.SGD(p, lr=0.1, maximize=True),
    "sgd decay": lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1),
    "sgd momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
    "sgd nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "sgd dampening": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.5),
    "sgd foreach": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
    "sgd tensor lr": lambda p: torch.optim.SGD(p, lr=torch.tensor(0.1), momentum=0.9, foreach=False),
    "sgd uphill": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, maximize=True),
    "sgd fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1, fused=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=0.1),
    "adam amsgrad": lambda p: torch.optim.Adam(p, lr=0.1, amsgrad=True),
    "adam foreach": lambda p: torch.optim.Adam(p, lr=0.1, foreach=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=0.1, fused=True, amsgrad=True),
    "adamw tensor lr": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.1), foreach=False),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.1, momentum=0.9, centered=True, weight_decay=0.1),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.1, weight_decay=0.1),
    "adadelta": lambda p: torch.optim.Adadelta(p, lr=0.1, weight_decay=0.1),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.1, weight_decay=0.1),
    "radam": lambda p: torch.optim.RAdam(p, lr=0.1, weight_decay=0.1),
    "adamax": lambda p: torch.optim.Adamax(p, lr=0.1, weight_decay=0.1),
    "rprop": lambda p: torch.optim.Rprop(p, lr=0.1),
    "asgd": lambda p: torch.optim.ASGD(p, lr=0.1, weight_decay=0.1),
}


@pytest.mark.parametrize(("name", "structure"), [*zip(OPTIMIZERS, cycle(["weight", "output"]))])
def test_held_entries_and_their_state_do_not_change(name: str, structure: str) -> None:
    """Nor do the signs of zeros among them, which the second cycle begins with."""
    model = mlp(k=3, structure=structure)
    optimizer = OPTIMIZERS[name](model.parameters())
    mrreg.attach(optimizer, model)
    for t in range(9):
        for p, slow in chain.from_iterable(map(slow_entries, masks(model))) if t == 3 else ():
            p.data[slow] = torch.where(p > 0, 0.0, -0.0)[slow]
        before = [p.detach().clone() for p in model.parameters()]
        held = held_bits(model, optimizer)
        masked = of(masks(model)[0]).masking
        train_step(model, optimizer, batch(t))
        assert masked == (t % 3 < 2)
        if masked:
            assert all(torch.equal(read(), bits) for read, bits in held)
        moved = [not torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True)]
        assert moved[0]
        assert moved[2]


@pytest.mark.parametrize(
    ("name", "options"),
    [*zip(OPTIMIZERS, cycle([{"p": 0.5, "k": 1}, {"p": 0.0, "k": 3}]))],
)
def test_without_masked_steps_it_is_ordinary_training_bit_for_bit(name: str, options: dict[str, Any]) -> None:
    model, plain = mlp(**options), plain_mlp()
    ours, theirs = (OPTIMIZERS[name](m.parameters()) for m in (model, plain))
    mrreg.attach(ours, model)
    assert train(model, ours, 7) == train(plain, theirs, 7)
    assert same_bits(model, plain)


@pytest.mark.parametrize("name", ["sgd", "sgd fused", "adamw", "rprop"])
def test_everything_slow_moves_on_joint_steps_only(name: str) -> None:
    model = mlp(p=1.0, k=3)
    optimizer = OPTIMIZERS[name](model.parameters())
    mrreg.attach(optimizer, model)
    weights = [p for mask in masks(model) for p, _ in slow_entries(mask)]
    for t in range(6):
        before = [w.detach().clone() for w in weights]
        train_step(model, optimizer, batch(t))
        assert [torch.equal(w, b) for w, b in zip(weights, before, strict=True)] == [t % 3 < 2] * 2


def test_joint_step_scales_the_displacement_of_slow_entries_alone() -> None:
    model = mlp(k=2, boost=3.0, dtype=torch.float64)
    twin = copy.deepcopy(model)
    optimizer, other = (torch.optim.RMSprop(m.parameters(), lr=0.01) for m in (model, twin))
    mrreg.attach(optimizer, model)
    train(model, optimizer, 1)
    twin.load_state_dict(model.state_dict())
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    start = next(p.detach().clone() for p, _ in slow_entries(masks(model)[0]))
    slow = next(s for _, s in slow_entries(masks(model)[0]))
    twin.eval()  # dense
    train(model, optimizer, range(1, 2))
    train(twin, other, range(1, 2))
    ours, theirs = (next(m.parameters()).detach() for m in (model, twin))
    assert torch.equal(ours[~slow], theirs[~slow])
    assert torch.allclose((ours - start)[slow], 3 * (theirs - start)[slow], rtol=1e-12)


class Calling(torch.optim.SGD):
    """A subclass whose step calls the step it overrides, where torch runs the hooks again."""

    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


def test_a_step_that_calls_super_counts_once() -> None:
    torch.optim.SGD(plain_mlp().parameters(), lr=0.1)  # torch hooks the class of the first instance
    model, twin = mlp(), mlp()
    ours = Calling(model.parameters(), lr=0.1, momentum=0.9)
    theirs = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9)
    for optimizer, net in ((ours, model), (theirs, twin)):
        mrreg.attach(optimizer, net)
    assert train(model, ours, 7) == pytest.approx(train(twin, theirs, 7), rel=1e-5)
    assert ours.param_groups[0]["mask_clock"] == 7
    torch.testing.assert_close(model.state_dict(), twin.state_dict())  # what a subclass does is measured, not known


@pytest.mark.parametrize("then", ["step", "detach", "load"])
def test_what_is_held_survives_a_step_that_fails_half_way(then: str) -> None:
    model = mlp(k=6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    handle = mrreg.attach(optimizer, model)
    train(model, optimizer, 7)
    held = held_bits(model, optimizer)
    saved = copy.deepcopy(optimizer.state_dict())
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
    assert all(torch.equal(read(), bits) for read, bits in held)


def test_closure_runs_forward_inside_the_step() -> None:
    model, twin = mlp(), mlp()
    ours, theirs = (torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (model, twin))
    for optimizer, net in ((ours, model), (theirs, twin)):
        mrreg.attach(optimizer, net)

    for t in range(7):

        def closure(t: int = t) -> float:
            ours.zero_grad()
            loss = loss_of(model(batch(t)))
            loss.backward()  # type: ignore[no-untyped-call]
            return float(loss.detach())

        ours.step(closure)
        train_step(twin, theirs, batch(t))
    assert same_bits(model, twin)


@pytest.mark.parametrize("lr", [0.1, torch.tensor(0.1)])
def test_calls_that_are_not_steps_do_not_move_the_clock(lr: Any) -> None:
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    mrreg.attach(optimizer, model)
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


def test_distributed_checkpoint_creates_state_without_a_step() -> None:
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    mrreg.attach(optimizer, model)
    train(model, optimizer, 4)
    saved = copy.deepcopy(get_optimizer_state_dict(model, optimizer))
    other = mlp()
    fresh = torch.optim.AdamW(other.parameters(), lr=0.1)
    mrreg.attach(fresh, other)
    other.load_state_dict(model.state_dict())
    set_optimizer_state_dict(other, fresh, saved)
    assert fresh.param_groups[0]["mask_clock"] == 4
    assert train(model, optimizer, range(4, 9)) == train(other, fresh, range(4, 9))
    assert same_bits(model, other)


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_skipped_by_the_scaler_does_not_count(fused: bool) -> None:
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=fused)
    mrreg.attach(optimizer, model)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    clocks = []
    for t in range(4):
        optimizer.zero_grad()
        loss = loss_of(model(batch(t)))
        scaler.scale(loss * (float("inf") if t == 1 else 1.0)).backward()  # type: ignore[no-untyped-call]
        before = [p.detach().clone() for p in model.parameters()]
        scaler.step(optimizer)
        scaler.update()
        clocks.append(optimizer.param_groups[0]["mask_clock"])
        if t == 1:
            assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
    assert clocks == [1, 1, 2, 3]


def test_clipping_sees_zeros_for_held_entries_and_cannot_move_them() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mrreg.attach(optimizer, model)
    for poison in (1.0, float("nan")):
        held = held_bits(model, optimizer)
        (model(batch(0)).square().mean() * poison).backward()
        for p, slow in slow_entries(masks(model)[0]):
            assert p.grad is not None
            assert not p.grad[slow].any()
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)  # multiplies everything by NaN the second time
        optimizer.step()
        optimizer.zero_grad()
        assert all(torch.equal(read(), bits) for read, bits in held)


def _penalize(model: nn.Module) -> None:
    """Weight decay as it was written before there was `weight_decay`; autograd does not count changes of `.data`."""
    for p in model.parameters():
        assert p.grad is not None
        p.grad.data.add_(p.data, alpha=0.1)


@pytest.mark.parametrize(
    ("name", "moment"), [("sgd", "before"), ("sgd momentum", "hook"), ("adamw", "closure"), ("rprop", "hook")]
)
def test_gradients_written_after_the_backward_pass_do_not_reach_held_entries(name: str, moment: str) -> None:
    model = mlp()
    optimizer = OPTIMIZERS[name](model.parameters())
    mrreg.attach(optimizer, model)
    if moment == "hook":
        optimizer.register_step_pre_hook(lambda *_: _penalize(model))

    def closure() -> float:
        optimizer.zero_grad()
        loss = loss_of(model(batch(0)))
        loss.backward()  # type: ignore[no-untyped-call]
        if moment != "hook":
            _penalize(model)
        return loss.item()

    for _ in range(2):
        held = held_bits(model, optimizer)
        if moment == "closure":
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
        assert all(torch.equal(read(), bits) for read, bits in held)
        for p, slow in slow_entries(masks(model)[0]):
            assert not any(
                optimizer.state[p][n][slow].any() for n in ("momentum_buffer", "exp_avg") if n in optimizer.state[p]
            )


@pytest.mark.parametrize("set_to_none", [True, False])
def test_accumulation_over_several_forwards_is_one_step(set_to_none: bool) -> None:
    model, twin = mlp(dtype=torch.float64), mlp(dtype=torch.float64)
    ours, theirs = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, twin))
    for optimizer, net in ((ours, model), (theirs, twin)):
        mrreg.attach(optimizer, net)
    for t in range(6):
        halves = batch(t, torch.float64).chunk(2)
        ours.zero_grad(set_to_none=set_to_none)
        for half in halves:
            (loss_of(model(half)) / 2).backward()  # type: ignore[no-untyped-call]
        held = held_bits(model, ours)
        ours.step()
        if t % 3 < 2:
            assert all(torch.equal(read(), bits) for read, bits in held)
        train_step(twin, theirs, batch(t, torch.float64))
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(p, q, rtol=1e-12)


def test_two_forwards_before_one_backward() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mrreg.attach(optimizer, model)
    x, y = batch(0), batch(1)
    (model(x).sum() * model(y).sum()).backward()
    both = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    a, b = model(x).sum().item(), model(y).sum().item()
    (model(x).sum() * b).backward()
    (model(y).sum() * a).backward()
    assert all(
        torch.allclose(p.grad, g, atol=1e-5)
        for p, g in zip(model.parameters(), both, strict=True)
        if p.grad is not None
    )


def test_several_optimizers_have_their_own_clocks() -> None:
    model = mlp()
    first = torch.optim.SGD(model[0].parameters(), lr=0.1)
    second = torch.optim.AdamW(model[2].parameters(), lr=0.1)
    mrreg.attach([first, second], model)
    for t in range(4):
        loss_of(model(batch(t))).backward()  # type: ignore[no-untyped-call]
        first.step()
        if t % 2:
            second.step()
        model.zero_grad()
    assert [o.param_groups[0]["mask_clock"] for o in (first, second)] == [4, 2]
    assert [of(mask).masking for mask in masks(model)] == [True, False]


def test_averages_see_true_weights_whenever_their_hook_was_registered() -> None:
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    seen: dict[str, list[torch.Tensor]] = {"before": [], "after": []}

    def look(when: str) -> Callable[..., None]:
        return lambda *_: seen[when].append(masks(model)[0].get_parameter("weight").detach().clone())

    optimizer.register_step_post_hook(look("before"))
    mrreg.attach(optimizer, model)
    optimizer.register_step_post_hook(look("after"))
    for t in range(6):
        train_step(model, optimizer, batch(t))
        weight = masks(model)[0].get_parameter("weight")
        assert torch.equal(as_bits(seen["before"][-1]), as_bits(weight.detach()))
        assert torch.equal(as_bits(seen["after"][-1]), as_bits(weight.detach()))


def test_a_group_added_later_gets_the_clock() -> None:
    model, extra = mlp(), nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mrreg.attach(optimizer, model)
    train(model, optimizer, 2)
    optimizer.add_param_group({"params": extra.parameters()})
    train(model, optimizer, range(2, 3))
    assert [group["mask_clock"] for group in optimizer.param_groups] == [3, 3]


@pytest.mark.filterwarnings("ignore:.*the fast part comes before")
def test_composes_with_the_multirate_optimizer() -> None:
    model = nn.Sequential(mlp(), nn.Linear(3, 3))
    optimizer = mrreg.MultirateSGD(model, lr=0.1, k=5, fast=model[0].parameters(), momentum=0.9)
    mrreg.attach(optimizer, model)
    for t in range(7):
        held = held_bits(model, optimizer)
        train_step(model, optimizer, batch(t))
        assert {group["mask_clock"] for group in optimizer.param_groups} == {t + 1}
        if t % 3 < 2:
            assert all(torch.equal(read(), bits) for read, bits in held)
    slow = nn.Sequential(mlp(), nn.Linear(3, 3))
    optimizer = mrreg.MultirateSGD(slow, lr=0.1, k=5, fast=slow[1].parameters())
    with pytest.raises(ValueError, match="part of period 1, got 5"):
        mrreg.attach(optimizer, slow)


def test_a_masked_part_that_becomes_slow_is_refused() -> None:
    """Drift along momentum would move what the masks hold."""
    model = nn.Sequential(mlp(), nn.Linear(3, 3))
    parts = [(torch.optim.SGD(part.parameters(), lr=0.1, momentum=0.9), 1) for part in model]
    optimizer = mrreg.Multirate(parts, model=model)
    mrreg.attach(optimizer, model)
    train(model, optimizer, 2)
    optimizer.param_groups[0]["period"] = 2
    before = [p.clone() for p in model.parameters()]
    with pytest.raises(ValueError, match="part of period 1, got 2"):
        train(model, optimizer, range(2, 3))
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
    optimizer.param_groups[0]["period"] = 1
    train(model, optimizer, range(2, 9))
    assert optimizer.param_groups[0]["clock"] == 9


@pytest.mark.parametrize(("name", "value"), [("p", 0.0), ("p", 0.9), ("k", 2), ("k", 1)])
def test_p_and_k_may_change_while_training(name: str, value: Any) -> None:
    """A change of p counts from the next step's masks on; what is masked is held in any case."""
    model = mlp(k=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    mrreg.attach(optimizer, model)
    for t in range(12):
        if t == 5:
            for each in masks(model):
                setattr(of(each), name, value)
        held = held_bits(model, optimizer) if of(masks(model)[0]).masking else []
        train_step(model, optimizer, batch(t))
        assert all(torch.equal(read(), bits) for read, bits in held)
    mask = of(masks(model)[0])
    assert mask.masking == (mask.p > 0 and 12 % mask.k < mask.k - 1)


@pytest.mark.parametrize("structure", ["weight", "output"])
def test_a_new_p_rescales_from_its_own_masks_on(structure: str) -> None:
    model = mlp(rescale=True, structure=structure)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mrreg.attach(optimizer, model)
    before = model(batch(0))
    for mask in masks(model):
        of(mask).p = 0.75
    assert torch.equal(model(batch(0)), before)
    train(model, optimizer, 1)
    layer: Any = model[0]
    weight = layer.weight * (bits(layer)["weight"] != 0) * 4
    assert torch.allclose(layer(batch(1)), nn.functional.linear(batch(1), weight, layer.bias), atol=1e-6)


def test_boost_may_change_at_any_step() -> None:
    """On the joint step itself too, after a cycle that boosted nothing."""
    model = mlp(k=2, boost=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mrreg.attach(optimizer, model)
    ((weight, slow),) = slow_entries(masks(model)[0])
    train(model, optimizer, 1)
    of(masks(model)[0]).boost = 5
    before = weight.detach().clone()
    train(model, optimizer, range(1, 2))
    assert weight.grad is not None
    factor = torch.where(slow, 5.0, 1.0)
    assert torch.allclose(weight, before - 0.1 * factor * weight.grad, atol=1e-7)


class Wide(torch.optim.Optimizer):
    """Momentum in float64 for parameters of any type, assigned anew on every step."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                old = self.state[p].get("buffer", torch.ones_like(p, dtype=torch.float64))
                self.state[p]["buffer"] = old * 0.9 + p.grad.double()
                p.sub_(self.state[p]["buffer"].to(p.dtype), alpha=group["lr"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_state_of_another_precision_is_held(dtype: torch.dtype) -> None:
    model = mlp(dtype=dtype)
    optimizer = Wide(model.parameters())
    mrreg.attach(optimizer, model)
    train(model, optimizer, 1)
    for t in range(1, 9):
        held = held_bits(model, optimizer)
        train(model, optimizer, range(t, t + 1))
        if t % 3 < 2:
            assert all(torch.equal(read(), bits) for read, bits in held)
