"""Layouts of a layer's units in its parameters: rows, columns, gates or groups."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mrreg.masks.layer_registry import Dimension, registered_layout

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


@dataclass(frozen=True)
class UnitLayout:
    """Units of a layer in one parameter, and how one bit per unit spreads over it.

    Args:
        units: Number of units.
        dim: The dimension of the parameter that counts units.
        repeats: Number of times that the units follow one another along `dim` (the gates of an LSTM).
        groups: Blocks of rows that have a share of the units each (grouped convolutions; then `dim` is 1).
    """

    units: int
    dim: int
    repeats: int = 1
    groups: int = 1

    def spread(self, bits: Tensor, shape: torch.Size) -> Tensor:
        """Return bits of the units, (units,), in a shape that broadcasts over the parameter's."""
        tail = (1,) * (len(shape) - self.dim - 1)
        if self.groups > 1:
            rows = bits.view(self.groups, 1, -1).expand(-1, shape[0] // self.groups, -1)
            return rows.reshape(shape[0], -1, *tail)
        return bits.repeat(self.repeats).view((1,) * self.dim + (-1, *tail))


def find_layout(layer: nn.Module, leaf: str, value: Tensor, structure: str) -> UnitLayout | None:
    """Return the layout of "input" or "output" units in a parameter of a layer; None if no one dimension has them."""
    dims = _dimensions(layer, leaf, value)
    if structure not in dims:
        return None
    dim = dims.index(structure)
    groups = getattr(layer, "groups", 1) if dim == 1 else 1
    repeats = 1
    if isinstance(layer, nn.RNNBase | nn.RNNCellBase) and structure == "output" and "_hr" not in leaf:
        repeats = value.shape[dim] // int(layer.hidden_size)  # gates; the projection of an LSTM has none
    return UnitLayout(value.shape[dim] * groups // repeats, dim, repeats, groups)


def _dimensions(layer: nn.Module, leaf: str, value: Tensor) -> tuple[Dimension, ...]:
    """Return what the dimensions of a parameter count, the first ones at least."""
    declared = registered_layout(layer)
    if declared is not None:
        return declared.get(leaf, ())
    if leaf in {"bias_k", "bias_v"}:  # keys and values that attention learns
        return ()
    for kinds, dims in DIMENSIONS:
        if isinstance(layer, kinds):
            return dims if value.dim() > 1 else ("output",)
    return ()


DIMENSIONS: tuple[tuple[tuple[type[nn.Module], ...], tuple[Dimension, ...]], ...] = (
    ((nn.Linear, *CONVOLUTIONS, nn.RNNBase, nn.RNNCellBase, nn.MultiheadAttention), ("output", "input")),
    ((*TRANSPOSED, nn.Embedding, nn.EmbeddingBag), ("input", "output")),
    ((nn.Bilinear,), ("output",)),  # two inputs, neither of which is the input
)
