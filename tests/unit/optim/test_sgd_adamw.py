"""`MultirateSGD` and `MultirateAdamW`: how parameters become groups, rates, and what is refused."""

import copy
import re
from typing import Any

import numpy as np
import pytest
import torch
from helpers.optimizers import network, sgd, train
from torch import nn
from torch.nn import Parameter

import mrreg

pytestmark = pytest.mark.filterwarnings("ignore:.*no forward of the model was seen")

BOTH = [mrreg.MultirateSGD, mrreg.MultirateAdamW]


def periods(optimizer: torch.optim.Optimizer) -> list[tuple[int, int]]:
    return [(group["period"], len(group["params"])) for group in optimizer.param_groups]


@pytest.mark.parametrize("form", BOTH)
def test_params_and_fast_in_several_forms(form: Any) -> None:
    net = network()
    assert periods(form(net, 0.1, 5, net.head.named_parameters())) == [(1, 2), (5, 2)]
    assert periods(form(net.named_parameters(), fast="head", k=2, model=net)) == [(1, 2), (2, 2)]
    given: Any = {"k": np.int64(3), "fast": [net.head.bias, net.trunk], "model": net}
    assert periods(form(iter(net.parameters()), **given)) == [(1, 3), (3, 1)]


def test_split_marks_slow_groups_and_k_fills_them_in() -> None:
    net = network()
    assert periods(mrreg.MultirateSGD(mrreg.split(net, fast="head"), lr=0.1, k=7, model=net)) == [(1, 2), (7, 2)]
    three = mrreg.split(net, slow={"trunk.weight": 6, "trunk.bias": 2})
    optimizer = mrreg.MultirateSGD(three, lr=0.1, model=net)
    assert sorted(periods(optimizer)) == [(1, 2), (2, 1), (6, 1)]
    assert optimizer.due == (True, True, True)
    assert periods(mrreg.MultirateSGD(mrreg.biases(net), lr=0.1, k=2, model=net)) == [(1, 2), (2, 2)]


def rates(optimizer: mrreg.Multirate) -> list[str]:
    """The step sizes that the text of an optimizer shows."""
    return re.findall(r", lr ([\d.]+(?: per gradient)?),", repr(optimizer))


@pytest.mark.parametrize("form", BOTH)
def test_slow_lr(form: Any) -> None:
    net = network()

    def built(**options: Any) -> list[str]:
        return rates(form(net, **{"lr": 0.5, "k": 4, "fast": net.head} | options))

    assert built() == built(slow_lr="coupled") == ["0.5", "0.5"]
    assert built(slow_lr="per_gradient") == ["0.5", "0.5 per gradient"]
    assert built(slow_lr=0.01) == built(slow_lr=np.float64(0.01)) == ["0.5", "0.01"]
    assert built(slow_lr=0) == ["0.5", "0"]
    assert built(slow_lr="per_gradient", k=1) == ["0.5"]  # one part
    own = [{"params": list(net.head.parameters())}, {"params": list(net.trunk.parameters()), "period": 4, "lr": 0.4}]
    given: dict[str, Any] = {"lr": 0.5}
    assert rates(form(own, **given, model=net, slow_lr=0.01)) == ["0.5", "0.4"]
    assert rates(form(own, **given, model=net, slow_lr="per_gradient")) == ["0.5", "0.4 per gradient"]


def nano_gpt(optimizer: mrreg.Multirate, t: int) -> None:
    for group in optimizer.param_groups:
        group["lr"] = 0.1 * (1 - t / 20)


SCHEDULES: dict[str, Any] = {
    "every group by hand": lambda o: lambda: nano_gpt(o, o.param_groups[0]["clock"]),
    "OneCycleLR": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=30).step,
    "CyclicLR": lambda o: torch.optim.lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=3).step,
    "SWALR": lambda o: torch.optim.swa_utils.SWALR(o, swa_lr=0.05, anneal_epochs=3).step,
    "a smallest lr": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 4, eta_min=0.05).step,
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_ratio_of_the_rates_survives_every_schedule(name: str) -> None:
    """The slow part moves k times as far in all as at its own lr in a twin whose slow lr is set by hand."""
    net, twin = network(torch.float64), network(torch.float64)
    k = 4
    optimizer, other = sgd(net, k=k, slow_lr="per_gradient"), sgd(twin, k=k)
    schedule = SCHEDULES[name](optimizer)
    for t in range(2 * k + 1):
        rate = optimizer.param_groups[0]["lr"]
        assert optimizer.param_groups[1]["lr"] == rate
        for group, each in zip(other.param_groups, (rate, rate / k), strict=True):
            group |= {"lr": each, "momentum": optimizer.param_groups[0]["momentum"]}
        train(net, optimizer, range(t, t + 1))
        train(twin, other, range(t, t + 1))
        schedule()
        for p, q in zip(net.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(p, q)
    saved = copy.deepcopy(optimizer.state_dict())
    again = sgd(network(torch.float64), k=k)  # the ratio comes with the state
    again.load_state_dict(saved)
    assert rates(again) == rates(optimizer)


def test_a_rate_per_gradient_follows_the_period() -> None:
    """A constant gradient of 1 moves the slow part by lr in each cycle, however long."""
    fast, slow = Parameter(torch.zeros(1)), Parameter(torch.zeros(1))
    model = nn.ParameterList([slow, fast])
    optimizer = mrreg.MultirateSGD(model, lr=1.0, k=2, fast=fast, slow_lr="per_gradient")
    places = []
    for t in range(12):
        if t == 1:
            optimizer.param_groups[1]["period"] = 5  # from the next sync step on
        places.append(-slow.item())
        fast.grad, slow.grad = torch.ones(1), torch.ones(1)
        optimizer.step()
    assert places == pytest.approx([0, 0.5, 1, 1.2, 1.4, 1.6, 1.8, 2, 2.2, 2.4, 2.6, 2.8])


class TestOneGroupScheduled:
    """A schedule that sets the lr of `param_groups[0]` alone leaves the slow part at its first rate."""

    def test_warns_once(self) -> None:
        optimizer = sgd(net := network())
        train(net, optimizer, range(2))
        optimizer.param_groups[0]["lr"] = 0.05
        with pytest.warns(
            mrreg.NoEffectWarning, match="of the first parameter group was changed .* in every group"
        ) as w:
            train(net, optimizer, range(2, 3))
        assert len(w) == 1
        optimizer.param_groups[0]["lr"] = 0.04
        train(net, optimizer, range(3, 5))

    def test_says_nothing_where_it_is_meant(self) -> None:
        for change in (
            lambda o: [group.update(lr=0.05) for group in o.param_groups],
            lambda o: o.param_groups[1].update(lr=0.05),
            lambda o: torch.optim.lr_scheduler.LambdaLR(o, [lambda t: 0.5, lambda t: 1.0]),
            lambda o: o.load_state_dict(other_rate(o)),
        ):
            optimizer = sgd(net := network())
            change(optimizer)
            train(net, optimizer, range(3))
        optimizer = sgd(net := network(), slow_lr=0.01)  # rates that differ from the start
        optimizer.param_groups[0]["lr"] = 0.05
        train(net, optimizer, range(3))


def other_rate(optimizer: mrreg.Multirate) -> dict[str, Any]:
    saved = copy.deepcopy(optimizer.state_dict())
    saved["param_groups"][0]["lr"] = 0.02
    return saved


def test_no_slow_part_warns_unless_k_is_1() -> None:
    for form in BOTH:
        for params in (network(), network().parameters(), [{"params": network().parameters()}]):
            with pytest.warns(
                mrreg.NoEffectWarning, match="k=4 has no effect, since all parameters are fast"
            ) as caught:
                form(params, lr=0.1, k=4)
            assert caught[0].filename == __file__
        form(network(), lr=0.1, k=1)


net = nn.Linear(2, 2)
other = Parameter(torch.ones(1))
FIT: dict[str, Any] = {"params": [net.weight, net.bias], "fast": net.bias, "model": net}
REFUSED: list[tuple[type[Exception], dict[str, Any], str]] = [
    (ValueError, {"k": 0}, "k must be a whole number, at least 1, got 0"),
    (TypeError, {"k": 2.0}, "k must be a whole number.*2.0"),
    (ValueError, {"lr": -0.1}, "Invalid learning rate: -0.1"),  # torch checks what is torch's
    (ValueError, {"slow_lr": "fast"}, "slow_lr must be a number or one of .*'fast'"),
    (ValueError, {"slow_lr": -1.0}, "slow_lr must be at least 0"),
    (TypeError, {"slow_lr": None}, "slow_lr must be a number"),
    (ValueError, {"params": nn.ReLU(), "fast": None}, "params must be something with parameters"),
    (TypeError, {"model": [net]}, "model must be the nn.Module with all slow parameters, got 'list'"),
    (
        TypeError,
        {"model": None},
        "model must be the nn.Module with all .* got 'NoneType'. Give it as model=",
    ),
    (ValueError, {"model": nn.Linear(2, 2)}, "model must be the module that holds all slow parameters, got .* without"),
    (ValueError, {"params": [], "fast": None}, "params must be something .* got .*iterator ends after use"),
    (ValueError, {"params": [{"params": [net.weight], "period": None}], "fast": None}, "1 for the fastest part"),
    (TypeError, {"params": [{"params": [net.weight], "period": "5"}], "fast": None}, "period must be a whole number"),
]


@pytest.mark.parametrize(("kind", "options", "message"), REFUSED)
@pytest.mark.parametrize("form", BOTH)
def test_refused(form: Any, kind: type[Exception], options: dict[str, Any], message: str) -> None:
    with pytest.raises(kind, match=message):
        form(**FIT | options)
    assert net.weight.requires_grad


def test_numpy_numbers_become_pythons() -> None:
    """A checkpoint with NumPy's own could not be loaded with weights_only=True."""
    net = network()
    numbers: dict[str, Any] = {"k": np.int32(2), "slow_lr": np.float32(0.25)}
    optimizer = mrreg.MultirateSGD(net, lr=0.25, fast=net.head, **numbers)
    for period in (4, 1):
        optimizer.param_groups[1]["period"] = np.int64(period)
        train(net, optimizer, range(5))
        kinds = {type(value) for group in optimizer.state_dict()["param_groups"] for value in group.values()}
        assert kinds <= {int, float, bool, str, list, tuple, type(None)}
    assert optimizer.param_groups[1]["next_sync"] == 10


@pytest.mark.parametrize(("name", "slow"), [("OneCycleLR", 0.01), ("CyclicLR", "own groups"), ("SWALR", 0.01)])
def test_one_rate_for_all_groups_undoes_the_slow_one(name: str, slow: Any) -> None:
    net = network()
    groups: Any = net
    if slow == "own groups":
        groups = mrreg.split(net, fast="head")
        groups[1]["lr"] = 0.02
    options: dict[str, Any] = {"fast": "head", "slow_lr": slow} if groups is net else {"model": net}
    optimizer = mrreg.MultirateSGD(groups, lr=0.1, k=2, momentum=0.9, **options)
    with pytest.warns(mrreg.NoEffectWarning, match="the slow part began with an lr of its own, and now all") as caught:
        train(net, optimizer, range(12), SCHEDULES[name](optimizer))
    assert len(caught) == 1


@pytest.mark.filterwarnings("error")
def test_rates_of_their_own_may_end_at_the_same_one() -> None:
    net = network()
    optimizer = mrreg.MultirateSGD(net, lr=0.1, k=3, fast="head", slow_lr=0.01)
    train(net, optimizer, range(8), torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 6, eta_min=1e-4).step)
