"""A thin model: what users see of it, and what its masked forwards and steps do."""

import copy
import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from helpers.masks import bits
from helpers.thin import (
    ADAM,
    GROUPS,
    MOMENTUM,
    TOLERANCE,
    Watched,
    attached,
    batch,
    group,
    mask_of,
    net,
    same,
    thin_net,
    train,
)
from helpers.thin_oracle import LiteralTraining, absent_entries, loss_of
from pytorch_optimizer import ScheduleFreeSGD
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop

import mrreg
from mrreg.masks.entries import as_bits
from mrreg.masks.groups import AttributeOverride, UnitGroup
from mrreg.masks.install import install
from mrreg.masks.mask import NAME

MAKES: dict[str, Callable[..., Optimizer]] = {
    "SGD": partial(SGD, lr=0.1),
    "momentum": MOMENTUM,
    "AdamW": ADAM,
    "AMSGrad": partial(AdamW, lr=0.01, eps=0.01, amsgrad=True, foreach=True),
    "fused": partial(Adam, lr=0.01, eps=0.01, fused=True),
    "RMSprop": partial(RMSprop, lr=0.001, eps=0.1, centered=True, momentum=0.9),
    "schedule-free": partial(ScheduleFreeSGD, lr=0.01, weight_decay=0.01),
}


# what users see


def test_class_and_names_stay() -> None:
    model, plain = thin_net(), net()
    assert isinstance(model, nn.Sequential)
    lines = repr(model).splitlines()
    assert lines.pop(1) == "  thin: 2 groups lose up to 50% of their units, k=3, boost=3"
    assert lines == repr(plain).splitlines()
    assert repr(copy.deepcopy(model)) == repr(model)
    assert repr(model[:2]) == repr(plain[:2])
    assert type(model).__qualname__ == "Sequential"
    assert type(model).__module__ == nn.Sequential.__module__
    assert inspect.signature(model.forward) == inspect.signature(plain.forward)
    assert list(model.state_dict()) == list(plain.state_dict())
    assert [name for name, _ in model.named_parameters()] == [name for name, _ in plain.named_parameters()]


def test_unwrap_takes_everything_back() -> None:
    model, optimizer = attached()
    parameters = list(model.parameters())
    train(model, optimizer, range(1))
    plain: nn.Module = mrreg.unwrap(model)
    assert plain is model
    assert type(plain) is nn.Sequential
    assert NAME not in vars(plain)
    assert all(p is q for p, q in zip(plain.parameters(), parameters, strict=True))
    before = copy.deepcopy(plain)
    other = AdamW(before.parameters(), lr=0.01, eps=0.01)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for each, its in ((plain, optimizer), (before, other)):  # an optimizer that is still attached holds nothing
        train(each, its, range(1, 4))
    same(plain, before)


def test_refuses_what_cannot_be_thin() -> None:
    patched = net()
    patched.forward = patched.forward  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="a module whose class defines its forward, got 'Sequential'"):
        install(patched, GROUPS)
    with pytest.raises(ValueError, match="thin: boost must be finite, at least 0, got -1"):
        install(net(), GROUPS, boost=-1)
    assert type(patched) is nn.Sequential


# other layers, other numbers of units


def test_a_layer_that_no_longer_fits_is_reported() -> None:
    model, _ = attached()
    model[5] = nn.Linear(9, 3).double()
    with pytest.raises(
        RuntimeError, match=r"thin: the module was changed .*'5\.weight' is gone, or has .*mrreg\.unwrap"
    ):
        model(batch(0))
    assert type(model[0]._parameters) is dict
    assert type(mrreg.unwrap(model)) is nn.Sequential
    model = thin_net()
    model[0], model[1], model[3] = nn.Linear(6, 9).double(), nn.Identity(), nn.Linear(9, 10).double()
    with pytest.raises(RuntimeError, match=r"thin: the module was changed .*'0\.bias', '0\.weight', '1\.bias'"):
        mrreg.attach(ADAM(model.parameters()), model)


def test_a_checkpoint_with_other_numbers_of_kept_units_is_refused() -> None:
    model, optimizer = attached()
    train(model, optimizer, range(2))
    saved = copy.deepcopy(optimizer.state_dict())
    assert saved["param_groups"][0]["mask_kept"] == (4, 5)
    other = install(net(), [replace(each, kept=3) for each in GROUPS], k=3)
    its = ADAM(other.parameters())
    handle = mrreg.attach(its, other)
    before = copy.deepcopy(its.state_dict())
    with pytest.raises(
        ValueError, match=r"load_state_dict: mask_kept must be \(3, 3\), .* got \(4, 5\)\. Make the model thin"
    ):
        its.load_state_dict(copy.deepcopy(saved))
    assert its.state_dict() == before
    handle.remove()
    assert "mask_kept" not in its.param_groups[0]
    its.load_state_dict(saved)
    with pytest.raises(ValueError, match=r"attach: mask_kept must be \(3, 3\)"):
        mrreg.attach(its, other)
    assert not mask_of(other).attached


# masked forwards


def test_absent_nan_is_never_read_and_gets_no_gradient() -> None:
    model, _ = attached()
    with torch.no_grad():
        for name, gone in absent_entries(model, GROUPS, 0).items():
            dict(model.state_dict(keep_vars=True))[name][gone] = torch.nan
    loss_of(model(batch(0))).backward()  # type: ignore[no-untyped-call]
    for name, gone in absent_entries(model, GROUPS, 0).items():
        grad = dict(model.named_parameters()).get(name, torch.zeros(())).grad
        if grad is not None:
            assert grad.isfinite().all()
            assert not grad[gone].any()


def watched() -> tuple[Watched, Optimizer]:
    model = install(Watched(*net()), GROUPS, [AttributeOverride("3", "out_features", 5)], k=3)
    optimizer = SGD(model.parameters(), lr=0.1)
    mrreg.attach(optimizer, model)
    return model, optimizer


def test_others_see_whole_tensors_during_a_masked_forward_and_after_one_that_fails() -> None:
    model: Any
    model, _optimizer = watched()
    shapes = {name: value.shape for name, value in net().state_dict().items()}
    plain: Any = net().eval()
    seen, before = [], model[0].weight.detach().clone()

    def elsewhere() -> None:
        seen.append(model[0].weight.shape == (8, 6) and model[1].running_mean.shape == (8,))

    def look() -> None:
        assert model[0].weight.shape == (4, 6)
        assert model[3].out_features == 5
        assert {name: value.shape for name, value in model.state_dict().items()} == shapes
        assert {name: value.shape for name, value in copy.deepcopy(model).state_dict().items()} == shapes
        with ThreadPoolExecutor(1) as pool:
            pool.submit(elsewhere).result()
        plain.load_state_dict(model.state_dict())
        assert torch.equal(plain[0].weight, before)
        with pytest.raises(RuntimeError, match="inside its own masked forward the module is called in evaluation mode"):
            model.eval()(batch(1))
        model.train()
        assert model[0].weight.shape == (4, 6)
        assert model[3].out_features == 5
        seen.append(True)

    def fail() -> None:
        raise KeyboardInterrupt

    expected = model(batch(0))
    for inside in (look, fail):
        model.inside = inside
        with pytest.raises(KeyboardInterrupt) if inside is fail else nullcontext():
            model(batch(0))
        assert seen == [True, True]
        assert model[3].out_features == 10
        assert type(model[0]._parameters) is dict
    model.inside = lambda: None
    torch.testing.assert_close(model(batch(0)), expected)


def test_a_layer_that_takes_the_place_of_another_within_a_cycle_is_masked_in_its_place() -> None:
    model: Any
    model, optimizer = watched()
    model(batch(0)).sum().backward()
    optimizer.step()
    whole = model[0].weight.shape
    model[0] = placed = nn.Linear(6, 8).double()
    optimizer.add_param_group({"params": list(model[0].parameters())})
    model.inside = lambda: shapes.append(model[0].weight.shape)
    shapes: list[torch.Size] = []
    model(batch(1)).sum().backward()
    assert shapes == [(4, 6)]
    absent = model[0].weight.grad.abs().sum(1) == 0
    assert absent.sum() == 4
    model[0] = nn.Linear(6, 7).double()
    with pytest.raises(RuntimeError, match=r"was changed since it got its mask: .*'0.weight'"):
        model(batch(1))
    model[0] = placed
    before = model[0].weight.detach().clone()
    optimizer.step()
    assert model[0].weight.shape == whole
    assert torch.equal((model[0].weight != before).any(1), ~absent)


@pytest.mark.parametrize("groups", [GROUPS, [group("inputs of 0", 6, 3, "inputs", consumer=[("0.weight", 1)])]])
def test_functional_call_leaves_the_tensors_that_it_was_given_as_they_are(groups: list[UnitGroup]) -> None:
    model = install(net(), groups, k=3)
    optimizer = SGD(model.parameters(), lr=0.1)
    mrreg.attach(optimizer, model)
    parameters = {name: p.detach().clone() for name, p in model.named_parameters()}
    given = {name: p.clone() for name, p in parameters.items()}
    output = torch.func.functional_call(model, given, (batch(0),))
    torch.testing.assert_close(output, model(batch(0)))
    assert given.keys() == parameters.keys()
    for name, p in given.items():
        assert torch.equal(p, parameters[name]), name


def test_forwards_of_two_threads_take_turns() -> None:
    model, _ = watched()
    batches = [batch(t) for t in range(8)]
    expected = list(map(model, batches))
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(model, batches))
    assert all(torch.equal(one, two) for one, two in zip(found, expected, strict=True))


class Fixed(nn.Module):
    """Reads its units by a buffer, as fixed random projections are."""

    fixed: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(6, 8)
        self.register_buffer("fixed", torch.randn(3, 8))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(torch.tanh(self.up(x)), self.fixed)


@pytest.mark.parametrize("how", ["left out", "zeroed", "compiled"])
def test_a_buffer_that_reads_units_stays_as_it_is(how: str) -> None:
    units = group("up", 8, 4, producer=[("up.weight", 0), ("up.bias", 0)], consumer=[("fixed", 1)])
    model = install(Fixed().double(), [replace(units, zeroed=how == "zeroed")], k=5)
    optimizer = SGD(model.parameters(), lr=0.1)
    mrreg.attach(optimizer, model)
    before = model.fixed.clone()
    called: Any = torch.compile(model, backend="eager") if how == "compiled" else model
    train(called, optimizer, range(3))
    assert torch.equal(as_bits(model.fixed), as_bits(before))


class Optional(nn.Module):
    """Reads its hidden units in two ways, of which the second is not searched."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, 8), nn.Linear(8, 2)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor, known: bool = True) -> Any:
        return (self.down if known else self.head)(torch.tanh(self.up(x)))


def test_the_error_of_an_untried_path_says_that_units_are_absent() -> None:
    model, _ = mrreg.thin(Optional(), p=0.5, k=3, example_inputs=torch.randn(2, 6))
    optimizer = SGD(model.parameters(), lr=0.1)
    mrreg.attach(optimizer, model)
    with pytest.raises(RuntimeError) as raised:
        model(torch.randn(4, 6), known=False)
    told = " ".join([str(raised.value), *getattr(raised.value, "__notes__", [])])
    assert "thin: units are absent in this step. If it runs without thin, example_inputs took another path" in told
    model.eval()(torch.randn(4, 6), known=False)


# steps


@pytest.mark.parametrize("make", MAKES)
@pytest.mark.parametrize(("boost", "rescale", "closure"), [(3, True, False), (2.5, False, True)])
def test_equals_the_literal_loop(make: str, boost: float, rescale: bool, closure: bool) -> None:
    model, optimizer = attached(MAKES[make], boost=boost, rescale=rescale)
    literal = LiteralTraining(net(), GROUPS, MAKES[make], 3, boost, rescale)
    for t in range(5):

        def evaluate(t: int = t) -> Tensor:
            optimizer.zero_grad()
            loss = loss_of(model(batch(t)))
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        before = _bits(model, optimizer, t // 3)
        expected = literal.step(batch(t))
        loss = optimizer.step(evaluate) if closure else evaluate()  # type: ignore[arg-type]
        if not closure:
            optimizer.step()
        torch.testing.assert_close(torch.as_tensor(loss).detach(), expected, **TOLERANCE)
        same(model, literal.model)
        for p, q in zip(model.parameters(), literal.model.parameters(), strict=True):
            torch.testing.assert_close(dict(optimizer.state[p]), dict(literal.optimizer.state[q]), **TOLERANCE)
        if t % 3 < 2:
            after = _bits(model, optimizer, t // 3)
            assert all(torch.equal(after[key], value) for key, value in before.items())


def _bits(model: nn.Module, optimizer: Optimizer, cycle: int) -> dict[tuple[str, str], Tensor]:
    """Bits of all that is absent from a cycle: parameters, buffers, state."""
    tensors, found = {**dict(model.named_parameters()), **dict(model.named_buffers())}, {}
    for name, gone in absent_entries(model, GROUPS, cycle).items():
        value = tensors[name].detach()
        found[name, ""] = as_bits(value[gone]).clone()
        for key, state in optimizer.state.get(tensors[name], {}).items():
            if isinstance(state, Tensor) and state.shape == value.shape:
                found[name, key] = as_bits(state[gone]).clone()
    return found


@pytest.mark.parametrize("late", [False, True])
def test_gradients_changed_before_the_step_count(late: bool) -> None:
    """By clipping, or by a hook of the optimizer, also one that was registered after `attach`."""
    model, optimizer = attached(MOMENTUM)
    literal = LiteralTraining(net(), GROUPS, MOMENTUM, 3, 3, True)

    def clip(module: nn.Module, *_: Any) -> None:
        torch.nn.utils.clip_grad_norm_(module.parameters(), max_norm=0.01)

    literal.optimizer.register_step_pre_hook(lambda *_: clip(literal.model))
    if late:
        optimizer.register_step_pre_hook(lambda *_: clip(model))
    for t in range(5):
        literal.step(batch(t))
        optimizer.zero_grad()
        loss_of(model(batch(t))).backward()  # type: ignore[no-untyped-call]
        if not late:
            clip(model)
        optimizer.step()
        same(model, literal.model)


def test_a_thin_part_of_a_model_and_a_mask_beside_it() -> None:
    torch.manual_seed(0)
    head = mrreg.MultirateMask(nn.Linear(3, 3).double(), p=0.5, k=3)
    model = nn.Sequential(thin_net(), nn.Tanh(), head)
    optimizer = ADAM(model.parameters())
    with mrreg.attach(optimizer, model):
        for t in range(4):
            cycle, phase = divmod(t, 3)
            slow = bits(head)["weight"] == 0
            before = _bits(model[0], optimizer, cycle), head.weight.detach().clone()
            train(model, optimizer, range(t, t + 1))
            if phase < 2:
                assert torch.equal(head.weight[slow], before[1][slow])
                after = _bits(model[0], optimizer, cycle)
                assert all(torch.equal(after[key], value) for key, value in before[0].items())
    assert not mask_of(model[0]).masking
