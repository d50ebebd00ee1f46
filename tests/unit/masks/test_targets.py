"""Whole units: dropping one in the weight is dropping it in the layer's input or output."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.masks import bits, of
from torch import Tensor, nn

import mrreg

LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int, int]] = {  # input shape, channel dims
    "linear": (lambda: nn.Linear(6, 5), (3, 6), 1, 1),
    "conv1d": (lambda: nn.Conv1d(4, 6, 3), (2, 4, 8), 1, 1),
    "conv2d grouped": (lambda: nn.Conv2d(8, 6, 3, groups=2), (2, 8, 6, 6), 1, 1),
    "conv2d depthwise": (lambda: nn.Conv2d(6, 12, 3, groups=6), (2, 6, 5, 5), 1, 1),
    "conv3d": (lambda: nn.Conv3d(4, 6, 2), (1, 4, 3, 3, 3), 1, 1),
    "transposed": (lambda: nn.ConvTranspose2d(4, 6, 3), (2, 4, 5, 5), 1, 1),
    "transposed grouped": (lambda: nn.ConvTranspose1d(8, 6, 3, groups=2), (2, 8, 5), 1, 1),
    "transposed depthwise": (lambda: nn.ConvTranspose1d(6, 12, 3, groups=6), (2, 6, 5), 1, 1),
}


def _driven(module: nn.Module, **options: Any) -> tuple[mrreg.MultirateMask, torch.optim.Optimizer]:
    mask = mrreg.MultirateMask(module, **{"rescale": False} | options)
    optimizer = torch.optim.SGD(mask.parameters(), lr=0.1)
    mrreg.attach(optimizer, mask)
    return mask, optimizer


def _dropped(mask: mrreg.MultirateMask, name: str = "weight") -> Tensor:
    """The slow units of a parameter, in their own order."""
    layout = next(t.layout for t in of(mask).targets if t.name == name)
    assert layout is not None
    drawn = bits(mask)[name]
    found = []
    for unit in range(layout.units):
        others = torch.full((layout.units,), -1, dtype=torch.int32)
        others[unit] = 0
        lone = layout.spread(others, mask.get_parameter(name).shape)
        found.append(bool(((lone | drawn) == -1).logical_not().any()))
    return torch.tensor(found).nonzero().flatten()


@pytest.mark.parametrize("name", LAYERS)
def test_input_units_are_inputs_of_the_layer(name: str) -> None:
    make, shape, channels, _ = LAYERS[name]
    layer, x = make(), torch.randn(shape)
    mask, _optimizer = _driven(layer, structure="input")
    dropped = _dropped(mask)
    assert len(dropped) == round(0.5 * shape[channels])
    without = x.index_fill(channels, dropped, 0)
    assert torch.allclose(mask(x), mrreg.unwrap(copy.deepcopy(layer))(without), atol=1e-6)


@pytest.mark.parametrize("name", LAYERS)
def test_output_units_with_their_bias_are_outputs_of_the_layer(name: str) -> None:
    make, shape, _, channels = LAYERS[name]
    layer, x = make(), torch.randn(shape)
    mask, _optimizer = _driven(layer, structure="output", parameters=["weight", "bias"])
    plain, ours = mrreg.unwrap(copy.deepcopy(layer))(x), mask(x)
    dropped = _dropped(mask)
    assert torch.equal(dropped, _dropped(mask, "bias"))
    assert len(dropped) == round(0.5 * plain.shape[channels])
    assert torch.allclose(ours, plain.index_fill(channels, dropped, 0), atol=1e-6)


@pytest.mark.parametrize(("structure", "dim"), [("input", 0), ("output", 1)])
def test_embeddings_drop_tokens_or_features(structure: str, dim: int) -> None:
    mask, _optimizer = _driven(nn.Embedding(9, 4), structure=structure)
    weight = mask.get_parameter("weight").detach()
    ids = torch.arange(9)
    assert torch.equal(mask(ids), weight.index_fill(dim, _dropped(mask), 0))


def test_output_units_of_an_lstm_are_the_same_in_all_gates_and_both_matrices() -> None:
    mask, _optimizer = _driven(nn.LSTM(3, 6, 2, bidirectional=True), structure="output", parameters=["*"])
    for suffix in ("l0", "l0_reverse", "l1", "l1_reverse"):
        names = [f"{kind}_{suffix}" for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
        units = [bits(mask)[name].view(4, 6) for name in names]
        assert all(torch.equal(u, units[0][:1].expand(4, 6)) for u in units)
        assert (units[0] == 0).sum() == 4 * 3
    out, _ = mask(torch.zeros(1, 1, 3))
    dropped = (bits(mask)["bias_ih_l1"].view(4, 6)[0] == 0).nonzero().flatten()
    assert not out[..., dropped].any()


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_both_directions_of_a_recurrent_layer_drop_the_same_inputs(kind: Any) -> None:
    mask, _optimizer = _driven(kind(6, 3, 2, bidirectional=True), structure="input")
    assert torch.equal(bits(mask)["weight_ih_l1"], bits(mask)["weight_ih_l1_reverse"])
    layer, x = kind(6, 3, bidirectional=True), torch.randn(4, 2, 6)
    mask, _optimizer = _driven(layer, structure="input", parameters=["weight_ih_l0*"])
    expected = mrreg.unwrap(copy.deepcopy(layer))(x.index_fill(2, _dropped(mask, "weight_ih_l0"), 0))[0]
    assert torch.allclose(mask(x)[0], expected, atol=1e-6)


def test_attention_masks_its_projections_by_unit() -> None:
    mask, _optimizer = _driven(nn.MultiheadAttention(6, 2), structure="input")
    assert bits(mask)["in_proj_weight"].shape == (1, 6)
    assert bits(mask)["out_proj.weight"].shape == (1, 6)


@pytest.mark.parametrize(
    ("module", "options", "says"),
    [
        (nn.Bilinear(2, 3, 4), {"structure": "input"}, "weight must be a parameter with one input dimension"),
        (nn.Linear(3, 2), {"structure": "hidden"}, r"structure must be one of.*got 'hidden'.*mrreg.thin\(model, p="),
    ],
)
def test_units_that_are_not_one_dimension_are_refused(module: nn.Module, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=f"MultirateMask: .*{says}"):
        mrreg.MultirateMask(module, **options)


class Strange(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.ones(3, 4))


def test_layers_nobody_knows_are_refused_by_unit_and_masked_by_entry() -> None:
    assert of(mrreg.MultirateMask(Strange())).targets[0].name == "table"
    with pytest.raises(ValueError, match=r"table must be.*got 'Strange.table'"):
        mrreg.MultirateMask(Strange(), structure="output")
