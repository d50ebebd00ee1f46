"""How far absent entries move in a joint step where nobody has said it: k with SGD without momentum, else 1."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.masks import bits, of, train
from helpers.thin import mask_of, thin_net
from torch import nn

import mrreg

CHOSEN: dict[str, tuple[Callable[[Any], Any], float]] = {
    "SGD": (lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1), 3),
    "momentum": (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), 1),
    "Langevin": (lambda p: mrreg.LangevinSGD(p, lr=0.1, temperature=1e-4), 3),
    "AdamW": (torch.optim.AdamW, 1),
    "part of a Multirate": (lambda p: mrreg.Multirate([(torch.optim.SGD(p, lr=0.1), 1)]), 3),
}


@pytest.mark.parametrize("kind", CHOSEN)
def test_attach_chooses_by_what_the_optimizer_does_and_says_so(kind: str) -> None:
    make, boost = CHOSEN[kind]
    model = thin_net(torch.float32, boost=None)
    optimizer = make(model.parameters())
    handle = mrreg.attach(optimizer, model)
    why = "SGD without momentum" if boost == 3 else "as with momentum"
    assert f"    boost {boost}: " in str(handle)
    assert why in str(handle)
    assert handle.state()["mask/boost"] == mask_of(model).boost == boost
    assert f"boost={boost}" in repr(model)


@pytest.mark.parametrize(("given", "expected"), [(None, (3, 1)), (2.0, (2, 2))])
def test_each_group_has_its_own(given: float | None, expected: tuple[float, float]) -> None:
    """The displacement of slow entries is that of the others' optimizer, times the factor of their group."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 30), nn.Tanh(), nn.Linear(30, 3))
    mask: Any = mrreg.mask(nn.Sequential(model), {"0": 0.5}, k=3, parameters=["*weight"], boost=given)
    first, second = (model.get_parameter(name) for name in ("0.weight", "2.weight"))
    groups: list[dict[str, Any]] = [{"params": [first]}, {"params": [second], "momentum": 0.9}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    handle = mrreg.attach(optimizer, mask)
    train(mask, optimizer, 2)
    slow = [value == 0 for value in bits(model).values()]
    before = [p.detach().clone() for p in (first, second)]
    train(mask, optimizer, range(2, 3))
    assert first.grad is not None
    force = [first.grad, optimizer.state[second]["momentum_buffer"]]
    for p, old, factor, moved, absent in zip((first, second), before, expected, force, slow, strict=True):
        torch.testing.assert_close((old - p.detach())[absent], 0.1 * factor * moved[absent])
    assert str(handle).count("    boost ") == len(set(expected))


def test_a_handle_that_goes_takes_its_choice_along() -> None:
    model = nn.Sequential(mrreg.MultirateMask(nn.Linear(6, 3), k=4))
    adam, plain = torch.optim.AdamW(model.parameters()), torch.optim.SGD(model.parameters(), lr=0.1)
    with mrreg.attach(adam, model):
        assert of(model[0]).boost == 1
    assert of(model[0]).boost == 4
    mrreg.attach(plain, model)
    assert of(model[0]).boost == 4


def test_a_momentum_that_a_schedule_turns_on_ends_the_boost() -> None:
    """OneCycleLR writes momentum into the groups of plain SGD: k times such an update would diverge."""
    model = thin_net(torch.float32, boost=None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = mrreg.attach(optimizer, model)
    torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=9)
    assert optimizer.param_groups[0]["momentum"] > 0
    train(model, optimizer, 2)
    assert handle.state()["mask/boost"] == 1
    assert "as with momentum" in str(handle)


def test_parameters_that_are_added_later_have_their_own() -> None:
    """Gradual unfreezing: their group may have a momentum, or none."""
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    mask: Any = mrreg.mask(nn.Sequential(model), {"0": 0.5}, k=2)
    first, second, third = (model.get_parameter(f"{i}.weight") for i in (0, 2, 4))
    optimizer = torch.optim.SGD([third], lr=0.1)
    for p in (first, second):
        p.requires_grad_(False)
    mrreg.attach(optimizer, mask)
    train(mask, optimizer, 2)
    for p in (first, second):
        p.requires_grad_(True)
    optimizer.add_param_group({"params": [first]})
    optimizer.add_param_group({"params": [second], "momentum": 0.9})
    train(mask, optimizer, 2)
    assert [of(model).boost_of(p)[0] for p in (first, second, third)] == [2, 1, 2]
