"""attach again: a new handle removes the old one, a refused attach changes nothing, wrappers are looked into."""

import gc
from collections import OrderedDict
from typing import Any

import pytest
import torch
from helpers.masks import batch, bits, held_bits, masks, mlp, of, same_bits, train, train_step
from torch import nn

import mrreg


def _sgd(model: nn.Module, **options: Any) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.1, **{"momentum": 0.9, **options})


def _hooks(optimizer: Any) -> list[int]:
    tables = [value for name, value in vars(optimizer).items() if name.endswith("_hooks")]
    return [len(table) for table in tables]


def test_the_same_optimizer_twice_is_refused() -> None:
    model, other = mlp(), mlp()
    optimizer = torch.optim.SGD([*model.parameters(), *other.parameters()], lr=0.1)
    handle = mrreg.attach(optimizer, model)
    for each in (model, other):
        with pytest.raises(
            RuntimeError, match=r"this SGD is attached already\. Call remove.*attach\(optimizer, \[a, b\]"
        ):
            mrreg.attach(optimizer, each)
    handle.remove()
    mrreg.attach(optimizer, [model, other])


@pytest.mark.parametrize("alive", [True, False])
def test_another_optimizer_takes_the_masks_over(alive: bool) -> None:
    model, reference = mlp(), mlp()
    first: Any = _sgd(model)
    old = mrreg.attach(first, model)
    train(model, first, 4)
    reference.load_state_dict(model.state_dict())
    kept = first if alive else None
    del first
    gc.collect()
    second, other = _sgd(model), _sgd(reference)
    mrreg.attach(second, model)
    mrreg.attach(other, reference)
    if kept is not None:
        assert "mask_clock" not in kept.param_groups[0]
    old.remove()  # inert
    assert all(of(mask).attached for mask in masks(model))
    assert train(model, second, range(4, 12)) == train(reference, other, range(4, 12))
    assert same_bits(model, reference)
    assert second.param_groups[0]["mask_clock"] == 8


def test_an_optimizer_takes_back_what_another_took() -> None:
    model = mlp()
    first, second = _sgd(model), _sgd(model)
    handle = mrreg.attach(first, model)
    mrreg.attach(second, model)
    mrreg.attach(first, model)
    handle.remove()  # of the first time
    assert _hooks(second) == _hooks(_sgd(model))
    train(model, first, 3)
    assert first.param_groups[0]["mask_clock"] == 3


def test_the_whole_old_handle_is_removed_where_a_part_is_taken_over() -> None:
    model = mlp()
    first, second = _sgd(model), _sgd(model[2])
    old = mrreg.attach(first, model)
    mrreg.attach(second, model[2])
    assert repr(old) == "Attachment (drives nothing)"
    assert [of(mask).attached for mask in masks(model)] == [False, True]
    with pytest.warns(mrreg.NoEffectWarning, match="no optimizer drives this mask"):
        model(batch(0)).sum().backward()
    second.step()
    assert second.param_groups[0]["mask_clock"] == 1


def test_an_attach_that_is_refused_changes_nothing() -> None:
    model, reference = mlp(), mlp()
    first, other, failing = _sgd(model), _sgd(reference), _sgd(model)
    mrreg.attach(first, model)
    mrreg.attach(other, reference)
    train(model, first, 1)
    train(reference, other, 1)
    failing.param_groups[0].update(mask_clock=5, mask_k=0, mask_seed=2)
    with pytest.raises(ValueError, match="mask_k must be a whole number, at least 1, got 0"):
        mrreg.attach(failing, model)
    assert _hooks(failing) == _hooks(_sgd(model))
    assert train(model, first, range(1, 7)) == train(reference, other, range(1, 7))


def test_several_models_of_one_optimizer() -> None:
    one, two = mlp(k=2), mlp(k=2)
    optimizer = torch.optim.Adam([*one.parameters(), *two.parameters()])
    handle = mrreg.attach(optimizer, [one, two])
    first, second = masks(one)[0], masks(two)[0]
    assert not torch.equal(bits(first)["weight"], bits(second)["weight"])
    for t in range(4):
        held = [*held_bits(one, optimizer), *held_bits(two, optimizer)]
        (one(batch(t)) + two(batch(t))).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        assert t % 2 == 1 or all(torch.equal(read(), bits) for read, bits in held)
    handle.remove()
    assert not any(of(mask).attached for mask in [*masks(one), *masks(two)])
    with pytest.raises(TypeError, match=r"model must be an nn\.Module, or a list of them, got 'list'"):
        mrreg.attach(optimizer, [one, 3])  # type: ignore[list-item]


class Lookahead(torch.optim.Optimizer):
    """As in older copies: without torch's constructor, with step hooks by hand."""

    def __init__(self, base: Any) -> None:
        self.optimizer, self.param_groups, self.state, self.defaults = (
            base,
            base.param_groups,
            base.state,
            base.defaults,
        )
        self._optimizer_step_pre_hooks: Any = OrderedDict()
        self._optimizer_step_post_hooks: Any = OrderedDict()
        self._patch_step_function()

    def step(self, closure: Any = None) -> Any:
        return self.optimizer.step(closure)


class Sharp(torch.optim.Optimizer):
    """Two phases, neither of which is called step."""

    def __init__(self, params: Any, **options: Any) -> None:
        super().__init__(params, options)
        self.base_optimizer = torch.optim.SGD(self.param_groups, **options)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self) -> None:
        for p in self.param_groups[0]["params"]:
            if p.grad is not None:
                self.state[p]["before"] = p.clone()
                p.add_(p.grad, alpha=0.1)

    @torch.no_grad()
    def second_step(self) -> None:
        for p in self.param_groups[0]["params"]:
            if "before" in self.state[p]:
                p.copy_(self.state[p].pop("before"))
        self.base_optimizer.step()

    def step(self, closure: Any = None) -> Any:
        raise NotImplementedError


class TwoPhases(torch.optim.SGD):
    """Steps that nobody can see."""

    def step(self, closure: Any = None) -> Any:
        raise NotImplementedError


def test_an_optimizer_in_a_wrapper_is_driven() -> None:
    model = mlp(k=3)
    optimizer = Lookahead(torch.optim.AdamW(model.parameters(), lr=0.01))
    mrreg.attach(optimizer, model)
    for t in range(7):
        held = held_bits(model, optimizer)
        train_step(model, optimizer, batch(t))
        assert t % 3 == 2 or all(torch.equal(read(), bits) for read, bits in held)
    assert optimizer.param_groups[0]["mask_clock"] == 7


def test_two_phases_are_one_step() -> None:
    model = mlp(k=3)
    optimizer = Sharp(model.parameters(), lr=0.1, weight_decay=0.1)
    mrreg.attach(optimizer, model)
    for t in range(9):
        held = held_bits(model, optimizer.base_optimizer)
        for phase in (optimizer.first_step, optimizer.second_step):
            optimizer.zero_grad()
            model(batch(t)).square().sum().backward()
            phase()
        assert t % 3 == 2 or all(torch.equal(read(), bits) for read, bits in held)
    assert optimizer.param_groups[0]["mask_clock"] == 9


def test_a_wrapper_that_does_not_call_its_inner_optimizer_is_reported() -> None:
    model = mlp()
    optimizer = Sharp(model.parameters(), lr=0.1)
    mrreg.attach(optimizer, model)

    def climb() -> None:
        for t in range(4):
            model(batch(t)).square().sum().backward()
            optimizer.first_step()

    with pytest.warns(mrreg.NoEffectWarning, match="moved between two forwards, but no step"):
        climb()


def test_an_optimizer_whose_steps_cannot_be_seen_is_refused() -> None:
    model = mlp()
    optimizer = TwoPhases(model.parameters(), lr=0.1)
    before = _hooks(optimizer)
    with pytest.raises(
        TypeError, match=r"got 'TwoPhases'\. A trial step on a small tensor failed \(NotImplementedError"
    ):
        mrreg.attach(optimizer, model)
    assert _hooks(optimizer) == before


@pytest.mark.parametrize("ks", [(2, 3), (3, 2), (4, 4)])
def test_each_masks_k_is_saved(ks: tuple[int, int]) -> None:
    def make(*ks: int) -> Any:
        torch.manual_seed(0)
        layers = [mrreg.MultirateMask(nn.Linear(6, 6), p=0.5, k=k) for k in ks]
        model = nn.Sequential(*layers)
        optimizer = _sgd(model)
        mrreg.attach(optimizer, model)
        return model, optimizer

    (model, optimizer), (twin, other) = make(2, 3), make(*ks)
    train(model, optimizer, 7)
    twin.load_state_dict(model.state_dict())
    other.load_state_dict(optimizer.state_dict())
    assert [of(mask).k for mask in masks(twin)] == [2, 3]
    assert train(twin, other, range(7, 20)) == train(model, optimizer, range(7, 20))
    assert same_bits(twin, model)


def test_another_number_of_masks_with_several_k_is_refused() -> None:
    model = nn.Sequential(*(mrreg.MultirateMask(nn.Linear(6, 6), p=0.5, k=k) for k in (2, 3, 4)))
    optimizer = _sgd(model)
    mrreg.attach(optimizer, model)
    saved = optimizer.state_dict()
    saved["param_groups"][0]["mask_k"] = (2, 3)
    with pytest.raises(ValueError, match=r"mask_k must be one k for each of 3 masks, got \(2, 3\)"):
        optimizer.load_state_dict(saved)
