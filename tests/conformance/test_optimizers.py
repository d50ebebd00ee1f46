"""The inputs with which torch tests its own SGD and AdamW, given to ours."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from helpers.optimizers import Net, network, same, train
from torch import Tensor
from torch.testing._internal.common_optimizers import OptimizerErrorEnum, optim_db

import mrreg

OURS: dict[Any, Any] = {torch.optim.SGD: mrreg.MultirateSGD, torch.optim.AdamW: mrreg.MultirateAdamW}
INFOS: list[Any] = [info for info in optim_db if info.optim_cls in OURS]
IMPLEMENTATIONS = [{}, {"foreach": True}, {"foreach": False}, {"fused": True}]


def inputs() -> Iterator[Any]:
    """Torch's class, its test's options and how they are computed."""
    for info in INFOS:
        for each in info.optim_inputs_func(device="cpu"):
            for how in IMPLEMENTATIONS:
                tensor_lr = isinstance(each.kwargs.get("lr"), Tensor)
                reason = "torch's SGD with foreach refuses a tensor as lr" if tensor_lr and how.get("foreach") else ""
                marks = [pytest.mark.skip(reason=reason)] if reason else []
                name = f"{info.optim_cls.__name__}: {each.desc} {how or ''}"
                yield pytest.param(info.optim_cls, {**each.kwargs, **how}, marks=marks, id=name)


INPUTS = list(inputs())


def test_torch_s_table_has_both() -> None:
    assert {info.optim_cls for info in INFOS} == set(OURS)


@pytest.mark.parametrize(("kind", "options"), INPUTS)
def test_all_fast_is_torch_bit_for_bit(kind: Any, options: dict[str, Any]) -> None:
    net, plain = network(), network()
    optimizer, other = OURS[kind](net.parameters(), k=1, **copy.deepcopy(options)), kind(plain.parameters(), **options)
    train(net, optimizer, range(7))
    train(plain, other, range(7))
    assert same(net, plain)
    for mine, theirs in zip(optimizer.param_groups, other.param_groups, strict=True):
        assert theirs.keys() <= mine.keys()
        assert all(mine[key] == value for key, value in theirs.items() if key != "params")
    assert repr(optimizer.state_dict()["state"]) == repr(other.state_dict()["state"])
    saved = copy.deepcopy(other.state_dict())
    optimizer.load_state_dict(saved)
    train(net, optimizer, range(7, 9))
    train(plain, other, range(7, 9))
    assert same(net, plain)


def moved(net: Net) -> list[Tensor]:
    return [p.detach().clone() for p in net.trunk.parameters()]


@pytest.mark.parametrize("drift", [True, False])
@pytest.mark.parametrize(("kind", "options"), INPUTS)
def test_a_slow_part_takes_torch_s_step_k_times(kind: Any, options: dict[str, Any], drift: bool) -> None:
    """At a sync step the base's own step, which the rest of the cycle repeats; without drift k of them at once."""
    net, plain = network(torch.float64), network(torch.float64)
    k = 3
    optimizer = OURS[kind](net, k=k, fast=net.head, drift=drift, **copy.deepcopy(options))
    other = kind(plain.trunk.parameters(), **options)
    for cycle in range(3):
        start = moved(net)
        plain.load_state_dict(net.state_dict())
        for t in range(k):
            if t == 0:
                train(plain, other, [k * cycle])
            train(net, optimizer, [k * cycle + t])
            done = t + 1 if drift else k
            steps = [(a - b) * done for a, b in zip(moved(plain), start, strict=True)]
            for now, before, step in zip(moved(net), start, steps, strict=True):
                torch.testing.assert_close(now, before + step, rtol=1e-9, atol=1e-12)


ERRORS = [
    pytest.param(info.optim_cls, each, id=f"{info.optim_cls.__name__}: {each.optimizer_error_input.desc}")
    for info in INFOS
    for each in info.optim_error_inputs_func(device="cpu", dtype=torch.float32)
]


@pytest.mark.parametrize(("kind", "error"), ERRORS)
@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate parameters")
def test_what_torch_refuses_is_refused(kind: Any, error: Any) -> None:
    """Where torch only warns (a parameter twice in one group), it is an error: it would move twice."""
    given = error.optimizer_error_input
    params = network().parameters() if given.params is None else given.params
    assert error.error_on is OptimizerErrorEnum.CONSTRUCTION_ERROR
    expected = ValueError if issubclass(error.error_type, Warning) else error.error_type
    with pytest.raises(expected):
        OURS[kind](params, k=1, **given.kwargs)
