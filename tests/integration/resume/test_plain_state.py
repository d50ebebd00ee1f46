"""States of a base optimizer go into a `Multirate` over the same groups, and back; any other is refused."""

import copy
from typing import Any

import pytest
import torch
from helpers.optimizers import Net, network, same, train
from torch.optim import SGD, AdamW, Optimizer

import mrreg

KINDS = [(SGD, mrreg.MultirateSGD, {"lr": 0.05, "momentum": 0.9}), (AdamW, mrreg.MultirateAdamW, {"lr": 0.01})]


def moments(optimizer: Optimizer, net: Net) -> list[Any]:
    return [optimizer.state[p].get("momentum_buffer", optimizer.state[p].get("exp_avg")) for p in net.parameters()]


@pytest.mark.parametrize(("kind", "form", "options"), KINDS)
@pytest.mark.parametrize("groups", [lambda net: mrreg.split(net, fast="head"), lambda net: net.parameters()])
def test_a_plain_state_goes_on_in_a_multirate_and_back(groups: Any, kind: Any, form: Any, options: Any) -> None:
    net = network()
    base = kind(groups(net), **options)
    train(net, base, range(3))
    twin = copy.deepcopy(net)
    optimizer = form(mrreg.split(twin, fast="head"), k=3, model=twin, **{**options, "lr": 1.0})
    optimizer.load_state_dict(copy.deepcopy(base.state_dict()))
    assert [(group["period"], group["lr"]) for group in optimizer.param_groups] == [(p, options["lr"]) for p in (1, 3)]
    train(net, base, range(3, 4))  # the first step is a sync step, so everybody's is the base's
    train(twin, optimizer, range(3, 4))
    assert same(net, twin)
    train(twin, optimizer, range(4, 9))
    back = kind(mrreg.split(twin, fast="head"), **options)
    back.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert all(torch.equal(a, b) for a, b in zip(moments(optimizer, twin), moments(back, twin), strict=True))
    train(twin, back, range(9, 11))


def test_a_state_of_other_groups_or_sizes_is_refused_and_nothing_has_changed() -> None:
    net = network()
    optimizer = mrreg.MultirateSGD(net, fast="head", k=3, lr=0.1, momentum=0.9)
    before = repr(optimizer.state_dict())
    for other in (
        network().head.parameters(),
        mrreg.split(Net(7), fast="head"),
        mrreg.split(network(), fast="head.bias"),
    ):
        plain = SGD(other, lr=0.1, momentum=0.9)
        for p in (p for group in plain.param_groups for p in group["params"]):
            p.grad = torch.ones_like(p)
        plain.step()
        with pytest.raises(ValueError, match="load_state_dict: state_dict"):
            optimizer.load_state_dict(plain.state_dict())
        assert repr(optimizer.state_dict()) == before
