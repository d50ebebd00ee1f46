"""What `attach` accepts and refuses, that it looks into wrappers, who takes over from whom; and it leaves no trace."""

import copy
import gc
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.masks import batch, bits, held_bits, masks, mlp, of, plain_mlp, same_bits, train, train_step
from torch import nn

import mrreg


def _sgd(model: nn.Module, **options: Any) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.1, **{"momentum": 0.9, **options})


def _hooks(optimizer: Any) -> list[int]:
    return [len(table) for name, table in vars(optimizer).items() if name.endswith("_hooks")]


class Wrapper(torch.optim.Optimizer):
    """Like Accelerate's: an Optimizer by name, without torch's constructor and tables."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer

    def step(self, closure: Any = None) -> Any:
        return self.optimizer.step()


class TwoPhases(torch.optim.SGD):
    """Steps that nobody can see."""

    def step(self, closure: Any = None) -> Any:
        raise NotImplementedError


NO_OPTIMIZER = "optimizer must be a torch.optim.Optimizer.*got "
REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "none": (lambda m: None, TypeError, f"{NO_OPTIMIZER}'NoneType'"),
    "a class": (lambda m: torch.optim.SGD, TypeError, "SGD is a class: give an instance"),
    "no one": (lambda m: [], ValueError, "optimizer must be at least one optimizer"),
    "a wrapper of nothing": (lambda m: Wrapper(None), TypeError, f"{NO_OPTIMIZER}'Wrapper'"),
    "LBFGS": (lambda m: torch.optim.LBFGS(m.parameters()), TypeError, "got 'LBFGS'. A trial step .*'closure'"),
    "unseen": (lambda m: TwoPhases(m.parameters()), TypeError, r"'TwoPhases'\. A trial step .* \(NotImplementedError"),
    "a model among them": (lambda m: [_sgd(m), m], TypeError, f"{NO_OPTIMIZER}'Sequential'"),
    "two of one": (lambda m: [_sgd(m), _sgd(m)], ValueError, 'one for each masked parameter, got "2 that'),
    "not all": (lambda m: _sgd(m[0]), ValueError, "every masked parameter, got \"none for '2.bias', '2.weight'\""),
    "parts of a mask": (
        lambda m: [torch.optim.SGD([p], lr=0.1) for p in m.parameters()],
        ValueError,
        "one for all parameters of the mask '0'",
    ),
    "a slow part": (
        lambda m: torch.optim.SGD([{"params": m.parameters(), "period": 3}], lr=0.1),
        ValueError,
        "0.weight must be in a part of period 1, got 3",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_optimizers_that_cannot_drive_are_refused(case: str) -> None:
    make, kind, says = REFUSED[case]
    model = mlp(parameters=["*"])
    optimizer = make(model)
    before = _hooks(optimizer) if isinstance(optimizer, TwoPhases) else []
    with pytest.raises(kind, match=says):
        mrreg.attach(optimizer, model)
    assert not any(of(mask).attached for mask in masks(model))
    assert not before or _hooks(optimizer) == before


@pytest.mark.parametrize(
    ("model", "seed", "kind", "says"),
    [
        (None, 0, TypeError, "model must be an nn.Module, or a list of them, got 'NoneType'"),
        (nn.Linear, 0, TypeError, "model must be.*Linear is a class: give an instance"),
        ((mlp(), {}), 0, TypeError, "model must be an nn.Module, or a list of them, got 'tuple'.*unpack it"),
        ([mlp(), 3], 0, TypeError, "model must be an nn.Module, or a list of them, got 'list'"),
        (plain_mlp(), 0, ValueError, "model must be a module with a mask, got 'Sequential'"),
        (mlp(), -1, ValueError, "seed must be a whole number, at least 0, got -1"),
        (mlp(), 0.5, TypeError, "seed must be a whole number.*got 0.5"),
    ],
)
def test_other_arguments_are_checked(model: Any, seed: Any, kind: type[Exception], says: str) -> None:
    optimizer = _sgd(model if isinstance(model, nn.Module) else mlp())
    with pytest.raises(kind, match=f"attach: {says}"):
        mrreg.attach(optimizer, model, seed)


def test_ties_to_the_outside_name_both_owners() -> None:
    embed, out = mrreg.MultirateMask(nn.Embedding(9, 4)), nn.Linear(4, 9, bias=False)
    out.weight = embed.weight
    model = nn.ModuleDict({"out": out, "embed": embed})
    with pytest.raises(ValueError, match=r"embed.weight must be.*tied to out.weight.*common parent"):
        mrreg.attach(_sgd(model), model)


@pytest.mark.parametrize("deep", [False, True])
def test_a_mask_that_is_used_in_several_places_is_one_mask(deep: bool) -> None:
    layer = nn.Linear(6, 6)
    block = nn.Sequential(layer, nn.Tanh()) if deep else layer
    model = mrreg.mask(nn.Sequential(block, block), {"0.0" if deep else "0": 0.5}, k=3)
    plain = mrreg.unwrap(copy.deepcopy(model))
    optimizer = _sgd(model)
    mrreg.attach(optimizer, model)
    (mask,) = masks(model)
    with torch.no_grad():
        next(p for p in plain.parameters() if p.dim() == 2).mul_(bits(mask)["weight"] != 0)
    assert torch.allclose(model(batch(0)), plain(batch(0)))
    train(model, optimizer, 1)
    assert optimizer.param_groups[0]["mask_clock"] == 1


def test_removing_leaves_no_trace() -> None:
    model, plain = mlp(), plain_mlp()
    ours, theirs = _sgd(model), _sgd(plain)
    before, hooks = [set(group) for group in ours.param_groups], _hooks(ours)
    with mrreg.attach(ours, model) as handle:
        train(model, ours, 2)
    handle.remove()  # a second time
    assert [set(group) for group in ours.param_groups] == before
    assert _hooks(ours) == hooks
    plain.load_state_dict(model.state_dict())
    theirs.load_state_dict(copy.deepcopy(ours.state_dict()))
    with pytest.warns(mrreg.NoEffectWarning, match="no optimizer drives this mask"):
        losses = train(model, ours, range(2, 6))
    assert losses == train(plain, theirs, range(2, 6))
    assert same_bits(model, plain)


def test_an_optimizer_that_is_gone_leaves_its_masks_undriven() -> None:
    model = mlp()
    optimizer = _sgd(model)
    mrreg.attach(optimizer, model)
    assert all(of(mask).attached for mask in masks(model))
    del optimizer
    gc.collect()
    assert not any(of(mask).attached or bits(mask) for mask in masks(model))


def test_the_same_optimizer_twice_is_refused_and_several_models_go_into_one_call() -> None:
    one, two = mlp(k=2), mlp(k=2)
    optimizer = torch.optim.Adam([*one.parameters(), *two.parameters()])
    handle = mrreg.attach(optimizer, one)
    for each in (one, two):
        with pytest.raises(
            RuntimeError, match=r"this Adam is attached already\. Call remove.*attach\(optimizer, \[a, b\]"
        ):
            mrreg.attach(optimizer, each)
    handle.remove()
    handle = mrreg.attach(optimizer, [one, two], seed=9)
    assert not torch.equal(bits(masks(one)[0])["weight"], bits(masks(two)[0])["weight"])
    for t in range(4):
        held = [*held_bits(one, optimizer), *held_bits(two, optimizer)]
        (one(batch(t)) + two(batch(t))).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        assert t % 2 == 1 or all(torch.equal(read(), bits) for read, bits in held)
    (group,) = optimizer.param_groups
    assert (group["mask_clock"], group["mask_k"], group["mask_seed"]) == (4, 2, 9)
    handle.remove()
    assert not any(of(mask).attached for mask in [*masks(one), *masks(two)])


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


def test_the_whole_old_handle_is_removed_where_a_part_is_taken_over() -> None:
    model = mlp()
    first, second = _sgd(model), _sgd(model[2])
    old = mrreg.attach(first, model)
    mrreg.attach(second, model[2])
    assert repr(old) == "Attachment (drives nothing)"
    assert [of(mask).attached for mask in masks(model)] == [False, True]


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


class Lookahead(torch.optim.Optimizer):
    """As in older copies: without torch's constructor, with step hooks by hand."""

    def __init__(self, base: Any) -> None:
        self.optimizer, self.param_groups, self.state, self.defaults = base, base.param_groups, base.state, {}
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


@pytest.mark.parametrize("wrap", [Lookahead, lambda base: Wrapper(Wrapper(base))])
def test_an_optimizer_in_a_wrapper_is_driven(wrap: Any) -> None:
    model = mlp(k=3)
    base = torch.optim.AdamW(model.parameters(), lr=0.01)
    optimizer = wrap(base)
    mrreg.attach(optimizer, model)
    for t in range(4):
        held = held_bits(model, base)
        train_step(model, optimizer if isinstance(optimizer, Lookahead) else base, batch(t))
        assert t % 3 == 2 or all(torch.equal(read(), bits) for read, bits in held)
    assert base.param_groups[0]["mask_clock"] == 4


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


def test_each_masks_k_is_saved() -> None:
    def make(*ks: int) -> Any:
        torch.manual_seed(0)
        model = nn.Sequential(*(mrreg.MultirateMask(nn.Linear(6, 6), p=0.5, k=k) for k in ks))
        optimizer = _sgd(model)
        mrreg.attach(optimizer, model)
        return model, optimizer

    (model, optimizer), (twin, other) = make(2, 3), make(4, 4)
    train(model, optimizer, 7)
    twin.load_state_dict(model.state_dict())
    other.load_state_dict(optimizer.state_dict())
    assert [of(mask).k for mask in masks(twin)] == [2, 3]
    assert [of(mask).masking for mask in masks(twin)] == [False, True]
    assert train(twin, other, range(7, 10)) == train(model, optimizer, range(7, 10))
    saved = optimizer.state_dict()
    saved["param_groups"][0]["mask_k"] = (2, 3, 4)
    with pytest.raises(ValueError, match=r"mask_k must be one k for each of 2 masks, got \(2, 3, 4\)"):
        optimizer.load_state_dict(saved)


@pytest.mark.parametrize("structure", ["weight", "output"])
def test_masks_on_layers_that_are_frozen_at_attach_act_once_these_train(structure: Any) -> None:
    model = mlp(structure=structure)
    model[0].requires_grad_(False)
    optimizer = _sgd(model[2])
    mrreg.attach(optimizer, model)
    train(model, optimizer, 3)
    model[0].requires_grad_(True)
    optimizer.add_param_group({"params": list(model[0].parameters())})
    train(model, optimizer, range(3, 4))
    assert [group["mask_clock"] for group in optimizer.param_groups] == [4, 4]
    held = held_bits(model[0], optimizer)
    train(model, optimizer, range(4, 5))
    assert held
    assert all(torch.equal(read(), before) for read, before in held)


def test_masks_that_no_one_of_several_optimizers_has_are_reported_once_their_layers_train() -> None:
    model: Any = nn.Sequential(mlp(), mrreg.MultirateMask(nn.Linear(3, 3)).requires_grad_(False))
    optimizers = [_sgd(model[0][0]), _sgd(model[0][2])]
    mrreg.attach(optimizers, model)
    model(batch(0)).sum().backward()
    model[1].requires_grad_(True)
    with pytest.warns(mrreg.NoEffectWarning, match="no optimizer drives this mask") as caught:
        model(batch(0)).sum().backward()
    assert caught[0].filename == __file__


class Reading(nn.Module):
    """Reads the weight of a layer that it does not call."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.layer.weight)


def _step(model: nn.Module, call: Any, penalty: float = 0.0) -> None:
    optimizer = _sgd(model)
    mrreg.attach(optimizer, model)
    for _ in range(4):
        (call(torch.ones(2, 4)).sum() + penalty * sum(p.square().sum() for p in model.parameters())).backward()
        optimizer.step()
        optimizer.zero_grad()


class Listing(Reading):
    """Reads its parameters by their names."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, dict(self.named_parameters())["layer.weight"])


class Later(Reading):
    """Goes on after it has returned."""

    def forward(self, x: torch.Tensor) -> Any:
        yield self.layer(x)


def _hooked() -> nn.Module:
    """Has a weight that a hook makes from another one before the forward."""
    layer: Any = nn.Linear(4, 4)
    layer.weight_orig = layer._parameters.pop("weight")
    layer.register_forward_pre_hook(lambda module, _: setattr(module, "weight", module.weight_orig * 0.5))
    return layer  # type: ignore[no-any-return]


PAST: dict[str, tuple[str, Callable[[], Any]]] = {
    "the weight alone": ("Linear", lambda: mrreg.mask(Reading(), {"layer": 0.5}, k=5)),
    "evaluation": ("Linear", lambda: mrreg.MultirateMask(nn.Linear(4, 4)).eval()),
    "by name": ("Listing", lambda: mrreg.MultirateMask(Listing())),
    "in a hook": ("Linear", lambda: mrreg.MultirateMask(_hooked())),
    "in a generator": ("Later", lambda: mrreg.MultirateMask(Later())),
}


@pytest.mark.parametrize("how", PAST)
def test_a_weight_that_is_used_past_its_mask_is_reported_once(how: str) -> None:
    kind, make = PAST[how]
    model = make()

    def call(x: torch.Tensor) -> torch.Tensor:
        output = model(x)
        return next(output) if kind == "Later" else output  # type: ignore[no-any-return]

    problem = rf"attach: the mask of a {kind} has no effect on '.*weight.* in training mode, .*or mask the module that"
    with pytest.warns(mrreg.NoEffectWarning, match=problem) as caught:
        _step(model, call)
    assert len(caught) == 1
    assert caught[0].filename == __file__


def test_a_mask_that_is_called_is_not_reported() -> None:
    for model in (mrreg.MultirateMask(Reading(), p=0.5, k=5), nn.Sequential(mrreg.MultirateMask(nn.Linear(4, 4)))):
        _step(model, model, penalty=0.1)
