"""One entry of a saved state damaged at random: it is refused and nothing has changed, or training goes on."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from helpers.optimizers import Make, adamw, hybrid, network, same, sgd, train
from hypothesis import given
from hypothesis import strategies as st
from torch.optim import Optimizer

JUNK: list[Any] = [None, "x", -1, 2.5, float("nan"), 10**9, [], {}, (), True, torch.zeros(3), torch.zeros(7, 5)]
OURS = (
    "clock",
    "last_sync",
    "period",
    "initial_period",
    "drift",
    "gradient",
    "slow_lr",
    "direction",
)
"""What a base keeps for itself is its own to check; a later sync step is as good as the true one."""


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The place of everything in nested dictionaries and lists."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        if key in OURS:
            yield (*path, key)
        yield from paths(each, (*path, key))


@pytest.mark.filterwarnings("ignore::mrreg.errors.NoEffectWarning")  # a damaged clock may be a valid one
@given(st.sampled_from([sgd, adamw, hybrid]), st.integers(0, 5), st.data())
def test_refused_and_unchanged_or_taken_and_trained(make: Make, steps: int, data: st.DataObject) -> None:
    net, twin = network(), network()
    optimizer, untouched = make(net), make(twin)
    train(net, optimizer, range(steps))
    train(twin, untouched, range(steps))
    saved: Any = copy.deepcopy(optimizer.state_dict())
    *way, last = data.draw(st.sampled_from(list(paths(saved))))
    place = saved
    for key in way:
        place = place[key]
    if data.draw(st.booleans()):
        del place[last]
    else:
        place[last] = data.draw(st.sampled_from(JUNK))
    before = repr(optimizer.state_dict())
    if refused(optimizer, saved):
        assert repr(optimizer.state_dict()) == before
        train(twin, untouched, range(steps, steps + 5))
        train(net, optimizer, range(steps, steps + 5))
        assert same(net, twin)
    else:
        train(net, optimizer, range(steps, steps + 5))


def refused(optimizer: Optimizer, saved: Any) -> str:
    """The message in which a load was refused, if it was."""
    try:
        optimizer.load_state_dict(saved)
    except (ValueError, TypeError) as error:
        assert "load_state_dict: " in str(error)  # noqa: PT017  # other errors are faults
        return str(error)
    return ""
