"""Interrupted and resumed at every step of two cycles, by every route, the training goes on bit for bit."""

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import pytorch_optimizer
import torch
from helpers.optimizers import (
    OTHERS,
    TORCH,
    Base,
    Make,
    Net,
    adamw,
    clock,
    hybrid,
    mixed,
    network,
    same,
    sgd,
    train,
)
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.optim import Optimizer

import mrreg

pytestmark = pytest.mark.filterwarnings("ignore:.*no forward of the model was seen")  # copies know no model

STEPS = 9  # two cycles of 4 and one step
Pair = tuple[Net, Optimizer]


def through_file(net: Net, optimizer: Optimizer, make: Make) -> Pair:
    file = io.BytesIO()
    torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    fresh = network(next(net.parameters()).dtype)
    fresh.load_state_dict(saved["model"])
    other = make(fresh)
    other.load_state_dict(saved["optimizer"])
    return fresh, other


def through_deepcopy(net: Net, optimizer: Optimizer, make: Make) -> Pair:
    return copy.deepcopy((net, optimizer))


def through_pickle(net: Net, optimizer: Optimizer, make: Make) -> Pair:
    pair: Pair = pickle.loads(pickle.dumps((net, optimizer)))
    return pair


def through_distributed(net: Net, optimizer: Optimizer, make: Make, flat: bool = False) -> Pair:
    options = StateDictOptions(flatten_optimizer_state_dict=flat)
    saved = copy.deepcopy(get_optimizer_state_dict(net, optimizer, options=options))
    fresh = copy.deepcopy(net).requires_grad_(True)
    other = make(fresh)
    set_optimizer_state_dict(fresh, other, saved, options=options)
    return fresh, other


def through_distributed_flat(net: Net, optimizer: Optimizer, make: Make) -> Pair:
    return through_distributed(net, optimizer, make, flat=True)


LOCAL = [through_file, through_deepcopy, through_pickle]
Route = Callable[[Net, Optimizer, Make], Pair]


def resumes(make: Make, route: Route, stop: int, dtype: torch.dtype = torch.float32) -> None:
    net = network(dtype)
    optimizer = make(net)
    train(net, optimizer, range(stop))
    other_net, other = route(net, optimizer, make)
    assert same(net, other_net)
    train(net, optimizer, range(stop, STEPS + 4))
    train(other_net, other, range(stop, STEPS + 4))
    assert same(net, other_net)
    assert clock(other) == STEPS + 4
    assert other.state_dict()["param_groups"] == optimizer.state_dict()["param_groups"]


MAKES: list[Make] = [sgd, adamw, hybrid]
ROUTES = [*LOCAL, through_distributed, through_distributed_flat]
WAYS = [(True, "sync", 2), (False, "mean", 5), (True, "mean", 3)]


@pytest.mark.parametrize("stop", range(STEPS))
@pytest.mark.parametrize("make", MAKES)
def test_every_step_of_two_cycles(make: Make, stop: int) -> None:
    """By another route at each step, and every optimizer by each of them."""
    resumes(make, ROUTES[(stop + MAKES.index(make)) % len(ROUTES)], stop)


@pytest.mark.parametrize("base", TORCH + OTHERS, ids=str)
def test_every_base(base: Base) -> None:
    """In all ways to train, each through another route: what is saved does not depend on both."""
    for i, (drift, gradient, stop) in enumerate(WAYS):
        resumes(mixed(base, drift, gradient), LOCAL[i], stop)


@pytest.mark.parametrize("name", ["aggmo", "apollo", "galore", "shampoo", "came"])
def test_bases_that_keep_other_shapes_or_dictionaries(name: str) -> None:
    """What a base keeps is its own: only what mrreg adds has a known shape."""
    resumes(mixed(Base(pytorch_optimizer.load_optimizer(name), {"lr": 0.01})), through_file, 5)


def test_bases_that_keep_a_count_for_all_parameters_are_not_mixed() -> None:
    kind: Any = pytorch_optimizer.load_optimizer("madgrad")
    resumes(
        lambda net: mrreg.Multirate([(kind(mrreg.split(net, slow={"trunk": 4})), None)], model=net), through_file, 5
    )
    optimizer = mixed(Base(kind, {"lr": 0.01}))(net := network())
    with pytest.raises(RuntimeError, match=r"Multirate.step: a part keeps 'k' for all its parameters.* Use this optim"):
        train(net, optimizer, range(1))


def test_other_precisions() -> None:
    resumes(sgd, through_file, 2, torch.bfloat16)
    resumes(adamw, through_file, 4, torch.float64)


@pytest.mark.parametrize("route", [through_deepcopy, through_file])
def test_a_resting_parameter_still_rests_after_loading(route: Any) -> None:
    net = network()
    optimizer = sgd(net)
    train(net, optimizer, range(3))
    net.trunk.weight.requires_grad_(False)  # no gradient at the second sync step, after one at the first
    train(net, optimizer, range(3, 4))
    net.trunk.weight.requires_grad_(True)
    before = net.trunk.weight.clone()
    for each, by in ((net, optimizer), route(net, optimizer, sgd)):
        train(each, by, range(4, 6))
        assert torch.equal(each.trunk.weight, before)
        train(each, by, range(6, 7))
        assert not torch.equal(each.trunk.weight, before)


@pytest.mark.parametrize("route", [through_deepcopy, through_file])
def test_gradients_gathered_before_a_first_step_are_kept(route: Any) -> None:
    """Adam refuses a state without its own entries, and a parameter may have gathered before Adam saw it."""

    def make(net: Net) -> Any:
        return adamw(net, gradient="mean")

    net = network()
    optimizer = make(net)
    net.trunk.weight.requires_grad_(False)  # no gradient at the first sync step
    train(net, optimizer, range(1))
    net.trunk.weight.requires_grad_(True)
    train(net, optimizer, range(1, 2))
    other_net, other = route(net, optimizer, make)
    assert all(base.state is other.state for base in (part.base for part in other._bases))
    train(net, optimizer, range(2, 9))
    train(other_net, other, range(2, 9))
    assert same(net, other_net)


def test_copies_share_nothing() -> None:
    net = network()
    optimizer = sgd(net)
    train(net, optimizer, range(2))
    other_net, other = copy.deepcopy((net, optimizer))
    before = copy.deepcopy(net.state_dict())
    train(other_net, other, range(2, 6))
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert clock(optimizer) == 2


def test_other_rates_and_missing_flags_are_taken_as_in_torch() -> None:
    net = network()
    optimizer = sgd(net, weight_decay=0.1)
    train(net, optimizer, range(2))
    saved = copy.deepcopy(optimizer.state_dict())
    for group in saved["param_groups"]:
        group["lr"] = 0.5
        del group["nesterov"], group["foreach"]
    optimizer.load_state_dict(saved)
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.5]
    assert optimizer.param_groups[0]["nesterov"] is False
    train(net, optimizer, range(2, 5))


@pytest.mark.parametrize(
    ("before", "after"),
    [({"momentum": 0.9}, {"momentum": 0.0}), ({"momentum": 0.0}, {"momentum": 0.9}), ({}, {"nesterov": True})],
)
def test_options_that_change_between_sync_steps_do_not_change_what_is_held(before: Any, after: Any) -> None:
    net = network()
    optimizer = sgd(net, **before)
    train(net, optimizer, range(1))
    optimizer.param_groups[1] |= after
    fresh = copy.deepcopy(net).requires_grad_(True)
    other = sgd(fresh, **before)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    train(net, optimizer, range(1, 9))
    train(fresh, other, range(1, 9))
    assert same(net, fresh)
