"""Periods that change while training goes on."""

import copy
from typing import Any

import pytest
import torch
from helpers.optimizers import hybrid, network, same, sgd, train

import mrreg


def growing(calls: int) -> int:
    return 2 if calls < 4 else 4


def test_a_cycle_is_never_cut_short() -> None:
    net = network()
    optimizer = sgd(net, k=2)
    scheduler = mrreg.PeriodScheduler(optimizer, growing)
    syncs = []
    for t in range(14):
        if optimizer.due[1]:
            syncs.append(t)
        train(net, optimizer, range(t, t + 1), scheduler.step)
    assert syncs == [0, 2, 4, 8, 12]
    assert scheduler.get_last_period() == [1, 4]


def test_sets_the_period_at_construction() -> None:
    optimizer = sgd(network(), k=5)
    mrreg.PeriodScheduler(optimizer, growing)
    assert [group["period"] for group in optimizer.param_groups] == [1, 2]


def test_one_function_per_group() -> None:
    optimizer = hybrid(network())
    scheduler = mrreg.PeriodScheduler(optimizer, [None, lambda _: 3, lambda calls: 3 * (calls + 1)])
    assert scheduler.get_last_period() == [1, 3, 3]
    scheduler.step()
    assert scheduler.get_last_period() == [1, 3, 6]


def test_one_function_for_no_group_is_told() -> None:
    optimizer = sgd(network(), k=1)
    with pytest.warns(mrreg.NoEffectWarning, match="PeriodScheduler: no group .* Build the optimizer with"):
        mrreg.PeriodScheduler(optimizer, growing)
    mrreg.PeriodScheduler(optimizer, [None, growing])
    assert [group["period"] for group in optimizer.param_groups] == [1, 2]


def test_resumes() -> None:
    nets = network(), network()
    optimizers = [sgd(net, k=2) for net in nets]
    schedulers = [mrreg.PeriodScheduler(optimizer, growing) for optimizer in optimizers]
    train(nets[0], optimizers[0], range(5), schedulers[0].step)
    nets[1].load_state_dict(nets[0].state_dict())
    optimizers[1].load_state_dict(copy.deepcopy(optimizers[0].state_dict()))
    schedulers[1].load_state_dict(schedulers[0].state_dict())
    assert schedulers[1].get_last_period() == [1, 4]
    for net, optimizer, scheduler in zip(nets, optimizers, schedulers, strict=True):
        train(net, optimizer, range(5, 14), scheduler.step)
    assert same(*nets)


def test_resuming_works_in_any_order() -> None:
    optimizer = sgd(network(), k=2)
    scheduler = mrreg.PeriodScheduler(optimizer, growing)
    for _ in range(6):
        scheduler.step()
    periods = scheduler.get_last_period()
    assert periods != [1, 2]
    saved, count = copy.deepcopy(optimizer.state_dict()), scheduler.state_dict()
    other = sgd(network(), k=2)
    other.load_state_dict(saved)
    late = mrreg.PeriodScheduler(other, growing)  # built after the optimizer has been loaded
    late.load_state_dict(count)
    assert late.get_last_period() == periods


@pytest.mark.parametrize(
    ("kind", "rule", "message"),
    [
        (TypeError, 3, "period_lambda must be a function"),
        (TypeError, [growing], "one for each of the 2 parameter groups"),
        (TypeError, [None, 3], "made of functions and None"),
        (ValueError, lambda _: 0, "at least 1, got 0"),
        (TypeError, lambda _: 2.5, "whole number"),
        (TypeError, lambda _: None, "whole number"),
        (ValueError, [lambda _: 2, None], "1 for the fastest part"),
    ],
)
def test_refused(kind: type[Exception], rule: Any, message: str) -> None:
    optimizer = sgd(network(), k=5)
    with pytest.raises(kind, match=message):
        mrreg.PeriodScheduler(optimizer, rule)
    assert [group["period"] for group in optimizer.param_groups] == [1, 5]


def test_refused_later_changes_nothing() -> None:
    optimizer = sgd(network(), k=5)
    scheduler = mrreg.PeriodScheduler(optimizer, lambda calls: 5 - 5 * calls)
    with pytest.raises(ValueError, match="at least 1"):
        scheduler.step()
    assert scheduler.last_epoch == 0
    assert scheduler.get_last_period() == [1, 5]


@pytest.mark.parametrize("optimizer", [None, torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)])
def test_needs_an_optimizer_with_periods(optimizer: Any) -> None:
    with pytest.raises(TypeError, match="optimizer must be a Multirate"):
        mrreg.PeriodScheduler(optimizer, growing)


@pytest.mark.parametrize(("last", "kind"), [(-2, ValueError), (0.5, TypeError), (None, TypeError)])
def test_last_epoch_is_a_count(last: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="last_epoch"):
        mrreg.PeriodScheduler(sgd(network()), growing, last_epoch=last)
