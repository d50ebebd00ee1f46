"""Damaged and foreign checkpoints are refused with what differs, and the live objects have not changed."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import masks as mask_cases
from helpers.optimizers import Make, adamw, loss, network, same, sgd, train
from torch import nn

import mrreg

Saved = dict[str, Any]
Damage = Callable[[Saved], object]


def put(key: str, value: Any, *groups: int) -> Damage:
    """A value in some parameter groups; no number means all."""

    def damage(saved: Saved) -> None:
        for i, group in enumerate(saved["param_groups"]):
            if not groups or i in groups:
                group[key] = value

    return damage


def lose(*path: Any) -> Damage:
    def damage(saved: Any) -> None:
        for step in path[:-1]:
            saved = saved[step]
        del saved[path[-1]]

    return damage


def rename(old: str, new: str) -> Damage:
    def damage(saved: Saved) -> None:
        for own in saved["state"].values():
            own[new] = own.pop(old)

    return damage


def state(index: int, value: Any) -> Damage:
    return lambda saved: saved["state"].__setitem__(index, value)


def replaced(make: Make) -> Damage:
    """The state of another optimizer after two steps."""

    def damage(saved: Saved) -> None:
        net = network()
        other = make(net)
        train(net, other, range(2))
        saved.clear()
        saved.update(other.state_dict())

    return damage


ANY: list[tuple[str, Damage, str]] = [
    ("clock, negative", put("clock", -1), "'clock'] must be a whole number, at least 0, got -1"),
    ("clock past a sync step", put("clock", 7), "between its last and its next sync step, got {'clock': 7"),
    ("a last sync step to come", put("last_sync", 5, 1), "between its last and its next sync step"),
    ("two clocks", lose("param_groups", 1, "clock"), "one clock, got [2, 0]"),
    ("no clock", lambda s: [lose("param_groups", i, "clock")(s) for i in (0, 1)], "between its last and its next"),
    ("no fast part", put("period", 3), "period must be 1 for the fastest part, got [3]"),
    ("period at construction", put("initial_period", 4, 1), "saved with period 3, got 4"),
    ("drift", put("drift", False), "saved with drift=True, got False"),
    ("gradient", put("gradient", "total", 1), "one of ('sync', 'mean', 'sum'), got 'total'"),
    ("no state", lose("state"), "must be the state_dict() of an optimizer, got \"nothing usable under 'state'"),
    ("no groups", lose("param_groups"), "nothing usable under 'param_groups'"),
    ("no lr", lose("param_groups", 0, "lr"), "without 'lr'"),
    ("a part less", lose("param_groups", 1), "saved with 2 parameter groups, got 1"),
]
SGD = [
    ("no momentum", lose("param_groups", 0, "momentum"), "SGD without 'momentum'"),
    ("a word as buffer", state(0, {"momentum_buffer": "x"}), "momentum_buffer of shape (2, 8), got 'x'"),
    ("other shape", state(2, {"momentum_buffer": torch.zeros(5)}), "momentum_buffer of shape (8, 4), got (5,)"),
    ("of MultirateAdamW", replaced(adamw), "SGD without 'dampening', 'momentum'"),
]
ADAMW = [
    ("renamed step", rename("step", "count"), "state_dict must be one that its parts can take, got 'KeyError'. 'step'"),
    ("no betas", lose("param_groups", 0, "betas"), "AdamW without 'betas'"),
    ("other shape", lambda s: s["state"][3].update(direction=torch.zeros(3, 3)), "direction of shape (8,), got (3, 3)"),
]
CASES = [(sgd, *case) for case in ANY + SGD] + [(adamw, *case) for case in ADAMW]


def refused(optimizer: torch.optim.Optimizer, damage: Damage, says: str) -> None:
    """A damaged state is refused with what differs, and the optimizer is what it was."""
    saved = copy.deepcopy(optimizer.state_dict())
    damage(saved)
    before = repr(optimizer.state_dict())
    with pytest.raises((ValueError, TypeError)) as raised:
        optimizer.load_state_dict(saved)
    assert says in str(raised.value)
    assert f"{type(optimizer).__name__}.load_state_dict: " in str(raised.value)
    assert repr(optimizer.state_dict()) == before


@pytest.mark.parametrize(
    ("make", "damage", "says"),
    [pytest.param(make, damage, says, id=f"{make.__name__}: {name}") for make, name, damage, says in CASES],
)
def test_multirate(make: Make, damage: Damage, says: str) -> None:
    net, twin = network(), network()
    optimizer, untouched = make(net), make(twin)
    train(net, optimizer, range(2))
    train(twin, untouched, range(2))
    refused(optimizer, damage, says)
    train(net, optimizer, range(2, 8))
    train(twin, untouched, range(2, 8))
    assert same(net, twin)


@pytest.mark.parametrize("saved", [None, "x", [], 5])
def test_what_is_no_dictionary(saved: Any) -> None:
    with pytest.raises(TypeError, match=r"load_state_dict: state_dict must be the state_dict\(\) of an optimizer"):
        sgd(network()).load_state_dict(saved)


def test_gradients_are_given_back_where_a_base_fails() -> None:
    net = network()
    bases = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (net.head, net.trunk)]
    optimizer = mrreg.Multirate(list(zip(bases, (1, 2), strict=True)), gradient="mean")
    train(net, optimizer, range(2))
    torch.autograd.backward(loss(net, 2))
    grad = net.trunk.weight.grad
    bases[1].register_step_pre_hook(lambda *_: 1 // 0)  # type: ignore[arg-type]
    with pytest.raises(ZeroDivisionError):
        optimizer.step()
    assert net.trunk.weight.grad is grad
    assert optimizer.param_groups[0]["clock"] == 2


def masked() -> tuple[nn.Sequential, torch.optim.Optimizer]:
    model = mask_cases.mlp()
    params = list(model.parameters())
    optimizer = torch.optim.AdamW([{"params": params[i::2]} for i in range(2)], lr=0.1)
    mrreg.attach(optimizer, model)
    mask_cases.train(model, optimizer, 4)
    return model, optimizer


MASKS: list[tuple[Damage, str]] = [
    (put("mask_clock", -3), "mask_clock must be a whole number, at least 0, got -3"),
    (put("mask_k", 0), "mask_k must be a whole number, at least 1, got 0"),
    (put("mask_seed", None), "mask_seed must be a whole number"),
    (put("mask_clock", 5, 1), "the phase of the masks must be complete and the same in all groups"),
    (lose("param_groups", 1, "mask_k"), "the phase of the masks must be complete and the same in all groups"),
]


@pytest.mark.parametrize(("damage", "says"), MASKS)
def test_masks(damage: Damage, says: str) -> None:
    (model, optimizer), (twin, other) = masked(), masked()
    refused(optimizer, damage, says)
    mask_cases.train(model, optimizer, range(4, 9))
    mask_cases.train(twin, other, range(4, 9))
    assert mask_cases.same_bits(model, twin)
