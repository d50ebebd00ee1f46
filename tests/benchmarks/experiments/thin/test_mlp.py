"""The networks of the MNIST study: what is left out, and when."""

import pytest
import torch
from torch import nn

from benchmarks.experiments.thin.mlp import DropUnits, Method, network, plan

SIZES = (12, 16, 4)


@pytest.mark.parametrize("kind", ["none", "dropout", "thin", "fresh", "entries"])
def test_every_method_begins_with_the_same_weights_and_evaluates_the_whole_network(kind: str) -> None:
    x = torch.rand(3, 12)
    torch.manual_seed(0)
    whole = network(Method(), SIZES).eval()(x)
    plan((0.2, 0.5), SIZES)
    torch.manual_seed(0)
    model = network(Method(kind, (0.2, 0.5)), SIZES)  # type: ignore[arg-type]
    torch.testing.assert_close(model.eval()(x), whole)


def test_units_are_left_out_for_the_whole_batch_and_in_the_right_number() -> None:
    out = DropUnits(0.25)(torch.ones(5, 8))
    assert torch.equal(out, out[:1].expand(5, 8))
    assert sorted(out[0].tolist()) == pytest.approx([0.0] * 2 + [8 / 6] * 6)


def test_units_are_drawn_anew_at_every_step_and_all_there_in_evaluation() -> None:
    torch.manual_seed(0)
    drop, x = DropUnits(0.5), torch.ones(1, 64)
    assert not torch.equal(drop(x), drop(x))
    assert torch.equal(drop.eval()(x), x)


def test_thin_networks_lose_pixels_and_hidden_units() -> None:
    report = plan((0.5, 0.25), SIZES)
    kept = {entry.kind: entry.kept for entry in report.values() if entry.admitted}
    assert kept == {"inputs": 6, "hidden": 12}
    assert sum(entry.kind == "hidden" and entry.admitted for entry in report.values()) == 2
    assert isinstance(network(Method("thin", (0.5, 0.25)), SIZES), nn.Sequential)


def test_dropout_beside_thin_units_acts_between_the_hidden_layers() -> None:
    model = network(Method("thin", (0.5, 0.25), beside=0.2), SIZES)
    drops = [module.p for module in model.modules() if isinstance(module, nn.Dropout)]
    assert drops == [0.2, 0.2]
