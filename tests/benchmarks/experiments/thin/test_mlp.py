"""The networks of the MNIST study: what is left out, and when."""

import pytest
import torch

from benchmarks.experiments.thin.mlp import DropUnits

SIZES = (12, 16, 4)


def test_units_are_left_out_for_the_whole_batch_and_in_the_right_number() -> None:
    out = DropUnits(0.25)(torch.ones(5, 8))
    assert torch.equal(out, out[:1].expand(5, 8))
    assert sorted(out[0].tolist()) == pytest.approx([0.0] * 2 + [8 / 6] * 6)


def test_units_are_drawn_anew_at_every_step_and_all_there_in_evaluation() -> None:
    torch.manual_seed(0)
    drop, x = DropUnits(0.5), torch.ones(1, 64)
    assert not torch.equal(drop(x), drop(x))
    assert torch.equal(drop.eval()(x), x)
