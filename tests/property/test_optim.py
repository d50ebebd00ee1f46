"""Laws of `Multirate` for all settings."""

import copy
from itertools import accumulate
from operator import mul
from typing import Any

import pytest
import torch
from helpers.optimizers import OTHERS, TORCH, Base, network, same, train
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import Parameter, ParameterList

import mrreg

pytestmark = [  # copies and loose parameters, in any order
    pytest.mark.filterwarnings(f"ignore:.*{told}")
    for told in ("no forward of the model was seen", "the fast part comes before")
]

bases = st.sampled_from(TORCH + OTHERS)
quiet = st.sampled_from([base for base in TORCH + OTHERS if base.kind is not mrreg.LangevinSGD])
steps = st.integers(0, 9)


@st.composite
def period_lists(draw: st.DrawFn) -> list[int]:
    """Periods of three parts: 1 and products of ratios, in any order."""
    ratios = draw(st.lists(st.integers(1, 3), min_size=2, max_size=2))
    return draw(st.permutations([1, *accumulate(ratios, mul)]))


def built(net: Any, choice: list[Base], periods: list[int], **options: Any) -> mrreg.Multirate:
    params = ([net.trunk.weight], [net.trunk.bias], list(net.head.parameters()))
    return mrreg.Multirate(
        [(base(part), k) for base, part, k in zip(choice, params, periods, strict=True)], model=net, **options
    )


three = st.lists(bases, min_size=3, max_size=3)


@given(three, period_lists(), st.booleans(), st.sampled_from(["sync", "mean", "sum"]), steps, steps)
def test_a_copy_or_a_loaded_state_goes_on_bit_for_bit(
    choice: list[Base], periods: list[int], drift: bool, gradient: str, before: int, after: int
) -> None:
    net = network()
    optimizer = built(net, choice, periods, drift=drift, gradient=gradient)
    train(net, optimizer, range(before))
    copied_net, copied = copy.deepcopy((net, optimizer))
    fresh = copy.deepcopy(net).requires_grad_(True)
    loaded = built(fresh, choice, periods, drift=drift, gradient=gradient)
    loaded.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for each, by in ((net, optimizer), (copied_net, copied), (fresh, loaded)):
        train(each, by, range(before, before + after))
        assert same(each, net)
        assert by.due == optimizer.due


@given(quiet, st.integers(1, 6), st.floats(0.0, 1.0), st.floats(-1.0, 1.0))
def test_a_cycle_goes_as_far_with_drift_as_without_given_the_same_gradient(
    base: Base, k: int, start: float, gradient: float
) -> None:
    ends = []
    for drift in (True, False):
        slow, fast = (Parameter(torch.full((3,), start, dtype=torch.float64)) for _ in range(2))
        parts = [(base([fast]), 1), (base([slow]), k)]
        optimizer = mrreg.Multirate(parts, drift=drift, model=ParameterList([slow, fast]))
        for _ in range(k):
            for p in (slow, fast):
                p.grad = torch.full_like(p, gradient)
            optimizer.step()
        ends.append(slow.detach())
    torch.testing.assert_close(*ends)


@given(quiet, steps)
def test_period_1_everywhere_is_the_base(base: Base, count: int) -> None:
    net, plain = network(), network()
    train(net, built(net, [base] * 3, [1, 1, 1]), range(count))
    train(plain, base(plain.parameters()), range(count))
    assert same(net, plain)
