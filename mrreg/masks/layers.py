"""Which dimensions of a layer's parameters hold its units; parameters from which a weight is computed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, spectral_norm, weight_norm
from torch.nn.utils.parametrize import ParametrizationList

from mrreg.errors import invalid_argument

Dimension = Literal["input", "output"] | None
LayerLayout = Mapping[str, tuple[Dimension, ...]]

WHERE = "register_layer"
LINEAR: LayerLayout = {"weight": ("output", "input"), "bias": ("output",)}
LINEAR_TRANSPOSED: LayerLayout = {"weight": ("input", "output"), "bias": ("output",)}

_layouts: dict[type[nn.Module], LayerLayout] = {}


def register_layer(cls: type[nn.Module], layout: LayerLayout) -> None:
    """Declare what the dimensions of a layer's parameters count, so that whole units of it can be masked.

    `swap_dropout`, `mask` and `MultirateMask` then treat the class (not its subclasses) as they treat nn.Linear: an
    input unit is absent if the entries of its "input" dimension are zero, an output unit is zero if those of its
    "output" dimension are. Layers that compute what nn.Linear does, with the weight in either order, are recognized by
    `swap_dropout` and `mask` and need no declaration.

    Args:
        cls: A module class that takes one tensor and returns one tensor.
        layout: From the name of each parameter to what its dimensions count: "input", "output" or None.

    Raises:
        TypeError: If an argument is of the wrong kind.
        ValueError: If the layout has another word, or one twice for a parameter, or no dimension to mask.

    Example:
        >>> from torch import nn
        >>> import mrreg
        >>> class Doubling(nn.Linear):
        ...     def forward(self, x):
        ...         return 2 * super().forward(x)
        >>> mrreg.register_layer(Doubling, {"weight": ("output", "input"), "bias": ("output",)})
        >>> model, report = mrreg.swap_dropout(nn.Sequential(nn.Dropout(0.5), Doubling(4, 2)))
        >>> report["0"].masks
        {'1': 'input'}
    """
    if not isinstance(cls, type) or not issubclass(cls, nn.Module):
        raise invalid_argument(TypeError, WHERE, "cls", "a subclass of torch.nn.Module", cls)
    rule = 'a mapping from parameter names to tuples of "input", "output" and None'
    if not isinstance(layout, Mapping) or not all(
        isinstance(name, str) and isinstance(dims, tuple) for name, dims in layout.items()
    ):
        raise invalid_argument(TypeError, WHERE, "layout", rule, layout)
    for name, dims in layout.items():
        if not set(dims) <= {"input", "output", None} or dims.count("input") > 1 or dims.count("output") > 1:
            raise invalid_argument(ValueError, WHERE, f"layout[{name!r}]", f"{rule}, each word once at most", dims)
    if not any("input" in dims or "output" in dims for dims in layout.values()):
        raise invalid_argument(ValueError, WHERE, "layout", "one with a dimension of units", layout)
    _layouts[cls] = dict(layout)


def registered_layout(layer: nn.Module) -> LayerLayout | None:
    """Return the declared layout of a layer's class."""
    return _layouts.get(type(layer))


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


OLD_KINDS = (weight_norm.__module__, spectral_norm.__module__)  # these work by a hook on the module


def makes_a_weight(owner: nn.Module, leaf: str, value: Tensor) -> bool:
    """Return False for a length or a small factor of the weight that a parametrization computes."""
    if isinstance(owner, ParametrizationList):
        return value.numel() == max(p.numel() for p in owner.parameters(recurse=False))
    return not (leaf.endswith("_g") and f"{leaf[:-1]}v" in owner._parameters)


def normalized_dims(owner: nn.Module, leaf: str, value: Tensor) -> tuple[int, ...]:
    """Return the dimensions over which a norm of the parameter is, or may be, divided by; none for plain weights."""
    every = tuple(range(value.dim()))
    if isinstance(owner, ParametrizationList):
        first = owner[0]
        is_weight_norm = isinstance(first, parametrizations._WeightNorm)
        return tuple(d for d in every if d != first.dim) if is_weight_norm else every
    hooks: list[Any] = list(owner._forward_pre_hooks.values())
    for hook in hooks:
        name = getattr(hook, "name", None)
        if type(hook).__module__ in OLD_KINDS and isinstance(name, str) and leaf.startswith(f"{name}_"):
            return tuple(d for d in every if d != hook.dim) if leaf.endswith("_v") else every
    return ()
