"""Layouts of a layer's units in its parameters: rows, columns, gates or groups."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mrreg.masks.layer_registry import registered_layout

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


@dataclass(frozen=True)
class UnitLayout:
    """Units of a layer in one parameter, and how one bit per unit spreads over it.

    Args:
        units: Number of units.
        dim: The dimension of the parameter that counts units.
        repeats: Number of times that the units follow one another along `dim` (the gates of an LSTM).
        groups: Blocks of rows that see their own share of the units (grouped convolutions; then `dim` is 1).
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
    if (declared := registered_layout(layer)) is not None:
        dims = declared.get(leaf, ())
        return UnitLayout(value.shape[dims.index(structure)], dims.index(structure)) if structure in dims else None
    for kinds, find in LAYOUTS:
        if isinstance(layer, kinds):
            return find(layer, leaf, value.shape, structure == "output")
    return None


def _rows_and_columns(layer: nn.Module, leaf: str, shape: torch.Size, output: bool) -> UnitLayout | None:
    """Read (out, in) and a bias (out,)."""
    if output:
        return UnitLayout(shape[0], 0)
    return UnitLayout(shape[1], 1) if len(shape) == 2 else None


def _convolution(layer: nn.Module, leaf: str, shape: torch.Size, output: bool) -> UnitLayout | None:
    """Read (out, in / groups, ...) and a bias (out,)."""
    if output:
        return UnitLayout(shape[0], 0)
    groups = int(layer.groups)  # type: ignore[arg-type]
    return UnitLayout(shape[1] * groups, 1, groups=groups) if leaf == "weight" else None


def _transposed(layer: nn.Module, leaf: str, shape: torch.Size, output: bool) -> UnitLayout | None:
    """Read (in, out / groups, ...) and a bias (out,)."""
    if leaf != "weight":
        return UnitLayout(shape[0], 0) if output else None
    groups = int(layer.groups)  # type: ignore[arg-type]
    return UnitLayout(shape[1] * groups, 1, groups=groups) if output else UnitLayout(shape[0], 0)


def _embedding(layer: nn.Module, leaf: str, shape: torch.Size, output: bool) -> UnitLayout | None:
    """Read (tokens, features)."""
    return UnitLayout(shape[int(output)], int(output))


def _recurrent(layer: nn.Module, leaf: str, shape: torch.Size, output: bool) -> UnitLayout | None:
    """Read (gates * hidden, in) and biases (gates * hidden,); the projection of an LSTM has no gates."""
    if not output:
        return UnitLayout(shape[1], 1) if leaf.startswith("weight") else None
    gates = 1 if "_hr" in leaf else shape[0] // int(layer.hidden_size)  # type: ignore[arg-type]
    return UnitLayout(shape[0] // gates, 0, repeats=gates)


def _bilinear(layer: nn.Module, leaf: str, shape: torch.Size, output: bool) -> UnitLayout | None:
    """Read (out, in1, in2): there are two inputs, so neither is the input."""
    return UnitLayout(shape[0], 0) if output else None


def _attention(layer: nn.Module, leaf: str, shape: torch.Size, output: bool) -> UnitLayout | None:
    """Read projections (out, in) and their bias; the learned key and value have no units."""
    return None if leaf in {"bias_k", "bias_v"} else _rows_and_columns(layer, leaf, shape, output)


Finder = Callable[[nn.Module, str, torch.Size, bool], UnitLayout | None]
LAYOUTS: tuple[tuple[tuple[type[nn.Module], ...], Finder], ...] = (
    ((nn.Linear,), _rows_and_columns),
    (CONVOLUTIONS, _convolution),
    (TRANSPOSED, _transposed),
    ((nn.Embedding, nn.EmbeddingBag), _embedding),
    ((nn.RNNBase, nn.RNNCellBase), _recurrent),
    ((nn.Bilinear,), _bilinear),
    ((nn.MultiheadAttention,), _attention),
)
