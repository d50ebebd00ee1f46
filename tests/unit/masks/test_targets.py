"""Whole units: dropping one in the weight is dropping it in the layer's input or output."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.masks import attached, bits, of
from torch import Tensor, nn

import mrreg

LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {  # with the shape of the input
    "linear": (lambda: nn.Linear(6, 5), (3, 6)),
    "conv1d": (lambda: nn.Conv1d(4, 6, 3), (2, 4, 8)),
    "conv3d": (lambda: nn.Conv3d(4, 6, 2), (1, 4, 3, 3, 3)),
    "transposed": (lambda: nn.ConvTranspose2d(4, 6, 3), (2, 4, 5, 5)),
}
GROUPED: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "grouped": (lambda: nn.Conv2d(8, 6, 3, groups=2), (2, 8, 6, 6)),
    "depthwise": (lambda: nn.Conv2d(6, 12, 3, groups=6), (2, 6, 5, 5)),
}


def _driven(module: nn.Module, **options: Any) -> nn.Module:
    return attached(module, **{"rescale": False} | options)[0]


def _dropped(mask: nn.Module, name: str = "weight") -> Tensor:
    """The slow units of a parameter, in their own order."""
    return (bits(mask)[name].flatten() == 0).nonzero().flatten()


@pytest.mark.parametrize("name", LAYERS)
def test_input_units_are_inputs_of_the_layer(name: str) -> None:
    make, shape = LAYERS[name]
    layer, x = make(), torch.randn(shape)
    mask = _driven(layer, structure="input")
    dropped = _dropped(mask)
    assert len(dropped) == round(0.5 * shape[1])
    without = x.index_fill(1, dropped, 0)
    assert torch.allclose(mask(x), mrreg.unwrap(copy.deepcopy(layer))(without), atol=1e-6)


@pytest.mark.parametrize("name", LAYERS | GROUPED)
def test_output_units_with_their_bias_are_outputs_of_the_layer(name: str) -> None:
    make, shape = (LAYERS | GROUPED)[name]
    layer, x = make(), torch.randn(shape)
    mask = _driven(layer, structure="output", parameters=["weight", "bias"])
    plain, ours = mrreg.unwrap(copy.deepcopy(layer))(x), mask(x)
    dropped = _dropped(mask)
    assert torch.equal(dropped, _dropped(mask, "bias"))
    assert len(dropped) == round(0.5 * plain.shape[1])
    assert torch.allclose(ours, plain.index_fill(1, dropped, 0), atol=1e-6)


@pytest.mark.parametrize(("structure", "dim"), [("input", 0), ("output", 1)])
def test_embeddings_drop_tokens_or_features(structure: str, dim: int) -> None:
    mask = _driven(nn.Embedding(9, 4), structure=structure)
    weight = mask.get_parameter("weight").detach()
    assert torch.equal(mask(torch.arange(9)), weight.index_fill(dim, _dropped(mask), 0))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_both_directions_of_a_recurrent_layer_drop_the_same_inputs(kind: Any) -> None:
    mask = _driven(kind(6, 3, 2, bidirectional=True), structure="input")
    assert torch.equal(bits(mask)["weight_ih_l1"], bits(mask)["weight_ih_l1_reverse"])
    layer, x = kind(6, 3, bidirectional=True), torch.randn(4, 2, 6)
    mask = _driven(layer, structure="input", parameters=["weight_ih_l0*"])
    expected = mrreg.unwrap(copy.deepcopy(layer))(x.index_fill(2, _dropped(mask, "weight_ih_l0"), 0))[0]
    assert torch.allclose(mask(x)[0], expected, atol=1e-6)


def test_attention_masks_its_projections_by_unit() -> None:
    mask = _driven(nn.MultiheadAttention(6, 2), structure="input")
    assert bits(mask)["in_proj_weight"].shape == (1, 6)
    assert bits(mask)["out_proj.weight"].shape == (1, 6)


class Strange(nn.Module):
    """A layer that nobody knows."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.ones(3, 4))


@pytest.mark.parametrize(
    ("module", "structure", "says"),
    [
        (nn.Bilinear(2, 3, 4), "input", "weight must be a parameter with one input dimension"),
        (nn.utils.spectral_norm(nn.Linear(3, 2)), "output", 'weight_orig must be .*Use structure="weight"'),
        (nn.Conv1d(4, 4, 3, groups=2), "input", "got 'Conv1d.weight'. Use structure=\"weight\""),
        (nn.LSTM(3, 4), "output", "weight_ih_l0 must be a parameter with one output dimension"),
        (Strange(), "output", "table must be .*got 'Strange.table'"),
        (nn.Linear(3, 2), "hidden", r"structure must be one of.*got 'hidden'.*mrreg.thin\(model, p="),
    ],
)
def test_units_that_are_not_one_dimension_are_refused(module: nn.Module, structure: Any, says: str) -> None:
    with pytest.raises(ValueError, match=f"MultirateMask: .*{says}"):
        mrreg.MultirateMask(module, structure=structure)
    assert structure == "hidden" or of(mrreg.MultirateMask(module)).targets[0].dim is None
