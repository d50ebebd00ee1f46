"""States of base optimizers go into a `Multirate` over the same parameters, and back."""

import copy
from typing import Any

import pytest
import torch
from helpers.optimizers import Net, network, train
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

import mrreg

KINDS = [(SGD, mrreg.MultirateSGD, {"lr": 0.05, "momentum": 0.9}), (AdamW, mrreg.MultirateAdamW, {"lr": 0.01})]


def by_parameters(net: Net, form: Any, options: Any) -> Optimizer:
    optimizer: Optimizer = form(net.parameters(), k=3, fast=net.head, model=net, **options)
    return optimizer


def by_model(net: Net, form: Any, options: Any) -> Optimizer:
    optimizer: Optimizer = form(net, k=3, fast="head", slow_lr="per_gradient", **options)
    return optimizer


def by_split(net: Net, form: Any, options: Any) -> Optimizer:
    optimizer: Optimizer = form(mrreg.split(net, fast="head"), k=3, model=net, **options)
    return optimizer


def decay_groups(net: nn.Module) -> list[dict[str, Any]]:
    weights, biases = ([p for p in net.parameters() if (p.dim() > 1) is is_weight] for is_weight in (True, False))
    return [{"params": weights, "weight_decay": 0.1}, {"params": biases, "weight_decay": 0.0}]


def by_groups(net: Net, form: Any, options: Any) -> Optimizer:
    optimizer: Optimizer = form(decay_groups(net), k=3, fast=net.head, model=net, **options)
    return optimizer


def moments(optimizer: Optimizer, p: Tensor) -> dict[str, Any]:
    return {key: value for key, value in optimizer.state[p].items() if key not in ("direction", "resting")}


def equal(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def pretrained(kind: Any, options: Any, groups: Any = None) -> tuple[Net, Optimizer]:
    net = network()
    base = kind(net.parameters() if groups is None else groups(net), **options)
    train(net, base, range(3))
    return net, base


@pytest.mark.parametrize(
    ("make", "groups", "which"),
    [
        (by_parameters, None, 0),
        (by_model, None, 1),
        (by_split, None, 0),
        (by_split, lambda net: mrreg.split(net, fast="head"), 1),
        (by_groups, decay_groups, 0),
        (by_groups, lambda net: mrreg.split(decay_groups(net), fast=net.head), 1),
    ],
)
def test_a_plain_state_goes_on_in_a_multirate(make: Any, groups: Any, which: int) -> None:
    kind, form, options = KINDS[which]
    net, base = pretrained(kind, options, groups)
    twin = copy.deepcopy(net)
    optimizer = make(twin, form, {**options, "lr": 1.0})
    optimizer.load_state_dict(copy.deepcopy(base.state_dict()))
    for p, q in zip(net.parameters(), twin.parameters(), strict=True):
        assert equal(moments(base, p), moments(optimizer, q))
    assert {group["lr"] for group in optimizer.param_groups} == {options["lr"]}
    assert [group["period"] for group in optimizer.param_groups] == [1, 3] * (len(optimizer.param_groups) // 2)
    if make in (by_parameters, by_split):  # the first step is a sync step, so everybody's is the base's
        train(net, base, range(3, 4))
        train(twin, optimizer, range(3, 4))
        assert all(torch.equal(p, q) for p, q in zip(net.parameters(), twin.parameters(), strict=True))
    train(twin, optimizer, range(4, 8))


@pytest.mark.parametrize(("kind", "form", "options"), KINDS)
def test_and_back_into_the_base_over_the_same_groups(kind: Any, form: Any, options: Any) -> None:
    net = network()
    optimizer = by_split(net, form, options)
    train(net, optimizer, range(7))
    twin = copy.deepcopy(net)
    base = kind(mrreg.split(twin, fast="head"), **options)
    base.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for p, q in zip(net.parameters(), twin.parameters(), strict=True):
        assert equal(moments(optimizer, p), moments(base, q))
    train(twin, base, range(7, 9))
    again = by_split(twin, form, options)
    again.load_state_dict(base.state_dict())


def test_a_state_of_other_sizes_is_refused_and_nothing_has_changed() -> None:
    net = network()
    optimizer = by_model(net, mrreg.MultirateSGD, {"lr": 0.1, "momentum": 0.9})
    before = repr(optimizer.state_dict())
    for other in (nn.Linear(4, 8), nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), nn.Linear(3, 3)):
        plain = SGD(other.parameters(), lr=0.1, momentum=0.9)
        for p in other.parameters():
            p.grad = torch.ones_like(p)
        plain.step()
        with pytest.raises(ValueError, match="state_dict"):
            optimizer.load_state_dict(plain.state_dict())
        assert repr(optimizer.state_dict()) == before


def test_parts_with_a_model_take_a_state_over_the_model() -> None:
    net, base = pretrained(AdamW, {"lr": 0.01})
    twin = copy.deepcopy(net)
    parts = [(AdamW(twin.head.parameters()), 1), (AdamW(twin.trunk.parameters()), 4)]
    optimizer = mrreg.Multirate(parts, model=twin)
    optimizer.load_state_dict(base.state_dict())
    for p, q in zip(net.parameters(), twin.parameters(), strict=True):
        assert equal(moments(base, p), moments(optimizer, q))
