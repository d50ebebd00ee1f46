"""torch.distributed.checkpoint with get_state_dict and set_state_dict: getters move nothing, loads are exact."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.optimizers import Net, adamw, hybrid, network, sgd, train
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.optim import Optimizer

import mrreg

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled, unavailable or uninitialized")
AHEAD = 4
Pair = tuple[nn.Module, Optimizer]
Make = Callable[[], Pair]


def multirate(make: Callable[[Net], Optimizer]) -> Make:
    def pair() -> Pair:
        net = network()
        return net, make(net)

    return pair


def masked(make: Callable[[nn.Module], Optimizer], k: int = 3) -> Make:
    def pair() -> Pair:
        net = network()
        wrapped = mrreg.mask(net, {"head": 0.5}, k=k)
        optimizer = make(wrapped)
        mrreg.attach(optimizer, wrapped)
        return wrapped, optimizer

    return pair


def masked_adamw(net: nn.Module) -> Optimizer:
    return torch.optim.AdamW(net.parameters(), lr=0.01)


def both(net: nn.Module) -> Optimizer:
    return mrreg.MultirateAdamW(mrreg.split(net, fast="head"), lr=0.01, k=3, model=net)


CASES = {
    "sgd": multirate(sgd),
    "algorithm 2": multirate(lambda net: sgd(net, drift=False)),
    "no momentum": multirate(lambda net: sgd(net, momentum=0.0)),
    "adamw": multirate(adamw),
    "gathered": multirate(lambda net: adamw(net, gradient="mean")),
    "three scales": multirate(hybrid),
    "masks": masked(masked_adamw),
    "both": masked(both, k=2),
}


def snapshot(net: nn.Module, optimizer: Optimizer) -> tuple[list[Tensor], list[bool], list[dict[str, Any]]]:
    groups = copy.deepcopy([{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups])
    return [p.detach().clone() for p in net.parameters()], [p.requires_grad for p in net.parameters()], groups


def save(net: nn.Module, optimizer: Optimizer, folder: Path) -> None:
    model_state, optimizer_state = get_state_dict(net, optimizer)
    state_dict_saver.save({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=folder, no_dist=True)


def load(net: nn.Module, optimizer: Optimizer, folder: Path) -> None:
    model_state, optimizer_state = get_state_dict(net, optimizer)
    state: dict[str, Any] = {"model": model_state, "optimizer": optimizer_state}
    state_dict_loader.load(state, checkpoint_id=folder, no_dist=True)
    set_state_dict(net, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


def same_training(one: Pair, other: Pair, steps: range) -> None:
    train(*one, steps)
    train(*other, steps)
    first, second = snapshot(*one), snapshot(*other)
    assert all(torch.equal(p, q) for p, q in zip(first[0], second[0], strict=True))
    assert first[1:] == second[1:]


@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
def test_getters_move_nothing(make: Make) -> None:
    first = 0 if isinstance(make()[1], mrreg.Multirate) else 1  # torch's own optimizers get state that counts
    for stop in (first, 2):
        (net, optimizer), undisturbed = make(), make()
        train(net, optimizer, range(stop))
        train(*undisturbed, range(stop))
        before = snapshot(net, optimizer)
        for _ in range(2):
            get_state_dict(net, optimizer)
        after = snapshot(net, optimizer)
        assert all(torch.equal(p, q) for p, q in zip(before[0], after[0], strict=True))
        assert before[1:] == after[1:]
        same_training((net, optimizer), undisturbed, range(stop, stop + AHEAD))


@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
def test_a_fresh_optimizer_goes_on_bit_for_bit(make: Make, tmp_path: Path) -> None:
    for stop in (0, 2):
        net, optimizer = make()
        train(net, optimizer, range(stop))
        save(net, optimizer, tmp_path / str(stop))
        fresh = make()
        load(*fresh, tmp_path / str(stop))
        same_training((net, optimizer), fresh, range(stop, stop + AHEAD))


@pytest.mark.parametrize("name", ["sgd", "adamw", "three scales", "both"])
def test_a_load_in_mid_cycle_goes_on_bit_for_bit(name: str) -> None:
    """torch drops the state of parameters that do not require a gradient at that moment: between steps all do."""
    net, optimizer = CASES[name]()
    train(net, optimizer, range(5))
    model_state, optimizer_state = copy.deepcopy(get_state_dict(net, optimizer))
    other, running = CASES[name]()
    train(other, running, range(2))
    set_state_dict(other, running, model_state_dict=model_state, optim_state_dict=optimizer_state)
    same_training((net, optimizer), (other, running), range(5, 5 + AHEAD))


def test_a_checkpoint_of_masks_is_that_of_the_plain_model(tmp_path: Path) -> None:
    net, optimizer = CASES["masks"]()
    train(net, optimizer, range(4))
    save(net, optimizer, tmp_path)
    plain = mrreg.unwrap(net)
    state: dict[str, Any] = {"model": {name: torch.zeros_like(p) for name, p in network().state_dict().items()}}
    state_dict_loader.load(state, checkpoint_id=tmp_path, no_dist=True)
    assert all(torch.equal(value, plain.state_dict()[name]) for name, value in state["model"].items())
