"""Laws of masks for any shape, share, cycle and optimizer."""

import copy
from typing import Any

import torch
from helpers.masks import held_bits, masks, of, same_bits, slow_entries, train_step
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import mrreg

SHARES = st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0])
CYCLES = st.integers(1, 5)
WIDTHS = st.integers(1, 9)
STRUCTURES = st.sampled_from(["weight", "input", "output"])
OPTIMIZERS: Any = st.sampled_from(
    [
        lambda p: torch.optim.SGD(p, lr=0.1),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
        lambda p: torch.optim.AdamW(p, lr=0.1),
    ]
)


def _model(width: int, **options: Any) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, width), nn.Tanh(), mrreg.MultirateMask(nn.Linear(width, 3), **options))


@given(SHARES, CYCLES, WIDTHS, STRUCTURES, OPTIMIZERS, st.booleans())
def test_phases_held_entries_and_joint_steps(
    p: float, k: int, width: int, structure: Any, make: Any, rescale: bool
) -> None:
    model = _model(width, p=p, k=k, structure=structure, rescale=rescale)
    optimizer = make(model.parameters())
    mrreg.attach(optimizer, model)
    (mask,) = masks(model)
    for t in range(2 * k + 1):
        masked = p > 0 and t % k < k - 1
        assert of(mask).masking == masked
        held = held_bits(model, optimizer) if masked else []
        train_step(model, optimizer, torch.randn(5, 4))
        assert all(torch.equal(read(), bits) for read, bits in held)
        assert optimizer.param_groups[0]["mask_clock"] == t + 1


@given(SHARES, CYCLES, WIDTHS, STRUCTURES, OPTIMIZERS, st.integers(0, 8))
def test_saving_and_loading_at_any_step_changes_nothing(
    p: float, k: int, width: int, structure: Any, make: Any, when: int
) -> None:
    model = _model(width, p=p, k=k, structure=structure)
    optimizer = make(model.parameters())
    mrreg.attach(optimizer, model, seed=when)
    for _ in range(when):
        train_step(model, optimizer, torch.randn(5, 4))
    twin = _model(width, p=p, k=k, structure=structure)
    other = make(twin.parameters())
    mrreg.attach(other, twin)
    twin.load_state_dict(copy.deepcopy(model.state_dict()))
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for _ in range(k + 1):
        x = torch.randn(5, 4)
        train_step(model, optimizer, x)
        train_step(twin, other, x)
        assert same_bits(model, twin)


@given(SHARES, WIDTHS, STRUCTURES, st.integers(0, 3))
def test_the_slow_subset_is_a_function_of_seed_position_and_cycle(
    p: float, width: int, structure: Any, cycle: int
) -> None:
    drawn = []
    for state in (1, 2):
        torch.manual_seed(state)
        model = _model(width, p=p, k=2, structure=structure)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        mrreg.attach(optimizer, model)
        for _ in range(2 * cycle):
            train_step(model, optimizer, torch.randn(5, 4))
        drawn.append([slow for mask in masks(model) if of(mask).p for _, slow in slow_entries(mask)])
    assert all(torch.equal(a, b) for a, b in zip(*drawn, strict=True))
