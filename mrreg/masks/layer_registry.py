"""Layers of other libraries: which dimension of their parameters counts input units and which output units."""

from collections.abc import Mapping
from typing import Literal

from torch import nn

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
