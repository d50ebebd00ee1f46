"""Which parameters of a module are masked, and which of their entries belong to one input or output unit."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from mrreg.errors import invalid_argument, quoted, unknown_name
from mrreg.masks.layer_registry import registered_layout

Structure = Literal["weight", "input", "output", "hidden"]
STRUCTURES = get_args(Structure)
WHERE = "MultirateMask"

NORMS = (
    nn.modules.batchnorm._NormBase,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
)
ZERO_AT_ZERO = (  # elementwise with f(0) = 0: a hidden unit whose input is zero stays zero
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.RReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish),
    *(nn.Tanh, nn.Tanhshrink, nn.Hardswish, nn.Softsign, nn.Softshrink, nn.Hardshrink, nn.Identity, nn.Dropout),
)
TRANSFORMER_LAYERS = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


@dataclass(frozen=True)
class UnitLayout:
    """How one bit per unit spreads over a parameter.

    Args:
        units: How many units there are.
        dim: The dimension of the parameter that counts units.
        repeats: How often the units follow one another along `dim` (the gates of an LSTM).
        groups: Blocks of rows that see their own share of the units (grouped convolutions; then `dim` is 1).
    """

    units: int
    dim: int
    repeats: int = 1
    groups: int = 1

    def spread(self, bits: Tensor, shape: torch.Size) -> Tensor:
        """Bits of the units, in a shape that broadcasts over the parameter's."""
        tail = (1,) * (len(shape) - self.dim - 1)
        if self.groups > 1:
            rows = bits.view(self.groups, 1, -1).expand(-1, shape[0] // self.groups, -1)
            return rows.reshape(shape[0], -1, *tail)
        return bits.repeat(self.repeats).view((1,) * self.dim + (-1, *tail))


@dataclass(frozen=True)
class MaskTarget:
    """One masked parameter of a wrapped module.

    Args:
        name: Its dotted name in the wrapped module (the first, where it is tied).
        names: All its names.
        group: Parameters of one group share one draw of units; a parameter drawn by entries is its own group.
        layout: How the units lie in it; None for entries drawn one by one.
        rescaled: Whether `rescale` divides it (a hidden unit is scaled once, by its consumer).
    """

    name: str
    names: tuple[str, ...]
    group: str
    layout: UnitLayout | None = None
    rescaled: bool = True


def _split(name: str) -> tuple[str, str]:
    """'a.b.weight' -> ('a.b', 'weight')."""
    owner, _, leaf = name.rpartition(".")
    return owner, leaf


def _by_default(module: nn.Module, name: str, value: Tensor) -> bool:
    """Weights with at least two dimensions, not of normalization layers."""
    owner, leaf = _split(name)
    is_norm = isinstance(module.get_submodule(owner), NORMS)
    return value.dim() >= 2 and value.is_floating_point() and not is_norm and not leaf.startswith("bias")


def _matches(pattern: object, name: str, value: Tensor) -> bool:
    """Whether one element of `parameters` (a name, a glob pattern or the tensor itself) means this parameter."""
    return fnmatchcase(name, pattern) if isinstance(pattern, str) else pattern is value


def _chosen(module: nn.Module, named: dict[str, Tensor], wanted: Iterable[object] | None) -> dict[str, Tensor]:
    """The parameters to mask, by name."""
    if wanted is None:
        return {name: value for name, value in named.items() if _by_default(module, name, value)}
    if not isinstance(wanted, Iterable):
        raise invalid_argument(TypeError, WHERE, "parameters", "several names, glob patterns or parameters", wanted)
    patterns = [wanted] if isinstance(wanted, str) else list(wanted)
    for pattern in patterns:
        if not isinstance(pattern, (str, Tensor)):
            raise invalid_argument(
                TypeError, WHERE, "parameters", "names, glob patterns or parameters of the module", pattern
            )
        if not any(_matches(pattern, name, value) for name, value in named.items()):
            if isinstance(pattern, str):
                raise unknown_name(WHERE, "parameters", "names or patterns that match a parameter", pattern, named)
            raise invalid_argument(
                ValueError, WHERE, "parameters", "parameters of the module", f"a tensor {tuple(pattern.shape)}"
            )
    return {n: v for n, v in named.items() if any(_matches(pattern, n, v) for pattern in patterns)}


def _refuse_unfit(module: nn.Module, name: str, value: Tensor) -> None:
    """Complex and integer parameters and sparse embeddings cannot be masked."""
    if not value.is_floating_point():
        raise invalid_argument(TypeError, WHERE, name, "a floating-point parameter", value.dtype)
    if getattr(module.get_submodule(_split(name)[0]), "sparse", False):
        remedy = "An optimizer of sparse gradients cannot hold single entries; use sparse=False."
        raise invalid_argument(
            ValueError, WHERE, name, "the weight of an embedding with dense gradients", "sparse=True", remedy
        )


def find_targets(module: nn.Module, wanted: Iterable[object] | None, structure: Structure) -> list[MaskTarget]:
    """The parameters that a mask with this structure covers, in the module's order."""
    every: dict[int, list[str]] = {}
    for name, value in module.named_parameters(remove_duplicate=False):
        every.setdefault(id(value), []).append(name)
    chosen = _chosen(module, dict(module.named_parameters(remove_duplicate=False)), wanted)
    chosen = {every[id(value)][0]: value for value in chosen.values()}
    if structure == "hidden":
        found = _hidden(module, chosen if wanted is not None else None)
    else:
        found = {name: _target(module, name, value, structure) for name, value in chosen.items()}
    if not found:
        remedy = "Wrap a layer that has a weight, or name what to mask in `parameters`."
        raise invalid_argument(
            ValueError, WHERE, "module", "a module with a parameter to mask", type(module).__name__, remedy
        )
    order = [names[0] for names in every.values() if names[0] in found]
    for name in order:
        _refuse_unfit(module, name, module.get_parameter(name))
    return [MaskTarget(name, tuple(every[id(module.get_parameter(name))]), *found[name]) for name in order]


Part = tuple[str, UnitLayout | None, bool]  # group, layout, rescaled


def _target(module: nn.Module, name: str, value: Tensor, structure: Structure) -> Part:
    """Group and layout of one parameter for every structure but 'hidden'."""
    if structure == "weight":
        return name, None, True
    owner, leaf = _split(name)
    layer = module.get_submodule(owner)
    layout = _layout(layer, leaf, value, structure)
    if layout is None:
        remedy = 'Use structure="weight", or leave it out with `parameters`.'
        rule = f"a parameter with one {structure} dimension when structure={structure!r}"
        raise invalid_argument(ValueError, WHERE, name, rule, f"{type(layer).__name__}.{leaf}", remedy)
    return _group(layer, name, layout.units, structure), layout, True


def _group(layer: nn.Module, name: str, units: int, structure: Structure) -> str:
    """Which parameters have their units in common.

    Rows of one layer do (weight, bias, the two matrices of a recurrent layer); columns only where both directions of a
    recurrent layer take the same input.
    """
    owner, leaf = _split(name)
    recurrent = isinstance(layer, nn.RNNBase)
    if structure == "output":
        suffix = leaf[leaf.find("_l") :] if recurrent and "_hr" not in leaf else ""
        return f"{owner}:{suffix}:{units}"
    return name.removesuffix("_reverse") if recurrent and leaf.startswith("weight_ih") else name


def _layout(layer: nn.Module, leaf: str, value: Tensor, structure: str) -> UnitLayout | None:
    """Where a layer type keeps its input or output units; None where that is not one dimension."""
    if (declared := registered_layout(layer)) is not None:
        dims = declared.get(leaf, ())
        return UnitLayout(value.shape[dims.index(structure)], dims.index(structure)) if structure in dims else None
    for kinds, find in LAYOUTS:
        if isinstance(layer, kinds):
            return find(layer, leaf, value.shape, structure == "output")
    return None


def _rows_and_columns(layer: nn.Module, leaf: str, shape: torch.Size, output: bool) -> UnitLayout | None:
    """(out, in) and a bias (out,)."""
    if output:
        return UnitLayout(shape[0], 0)
    return UnitLayout(shape[1], 1) if len(shape) == 2 else None


def _convolution(layer: nn.Module, leaf: str, shape: torch.Size, output: bool) -> UnitLayout | None:
    """(out, in / groups, ...) and a bias (out,)."""
    if output:
        return UnitLayout(shape[0], 0)
    groups = int(layer.groups)  # type: ignore[arg-type]
    return UnitLayout(shape[1] * groups, 1, groups=groups) if leaf == "weight" else None


def _transposed(layer: nn.Module, leaf: str, shape: torch.Size, output: bool) -> UnitLayout | None:
    """(in, out / groups, ...) and a bias (out,)."""
    if leaf != "weight":
        return UnitLayout(shape[0], 0) if output else None
    groups = int(layer.groups)  # type: ignore[arg-type]
    return UnitLayout(shape[1] * groups, 1, groups=groups) if output else UnitLayout(shape[0], 0)


def _embedding(layer: nn.Module, leaf: str, shape: torch.Size, output: bool) -> UnitLayout | None:
    """(tokens, features)."""
    return UnitLayout(shape[int(output)], int(output))


def _recurrent(layer: nn.Module, leaf: str, shape: torch.Size, output: bool) -> UnitLayout | None:
    """(gates * hidden, in) and biases (gates * hidden,); the projection of an LSTM has no gates."""
    if not output:
        return UnitLayout(shape[1], 1) if leaf.startswith("weight") else None
    gates = 1 if "_hr" in leaf else shape[0] // int(layer.hidden_size)  # type: ignore[arg-type]
    return UnitLayout(shape[0] // gates, 0, repeats=gates)


def _bilinear(layer: nn.Module, leaf: str, shape: torch.Size, output: bool) -> UnitLayout | None:
    """(out, in1, in2): two inputs, so none is the input."""
    return UnitLayout(shape[0], 0) if output else None


def _attention(layer: nn.Module, leaf: str, shape: torch.Size, output: bool) -> UnitLayout | None:
    """Projections (out, in) and their bias; the learned key and value are neither."""
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


def _hidden(module: nn.Module, chosen: dict[str, Tensor] | None) -> dict[str, Part]:
    """Producer's rows and bias, consumer's columns: one draw for the units between the two."""
    first, second = hidden_pair(module)
    producer, consumer = module.get_submodule(first), module.get_submodule(second)
    weights = (f"{first}.weight", producer), (f"{second}.weight", consumer)
    (rows, _), (columns, _) = weights
    units = _layout(producer, "weight", producer.get_parameter("weight"), "output")
    inputs = _layout(consumer, "weight", consumer.get_parameter("weight"), "input")
    if units is None or inputs is None or units.units != inputs.units:
        got = f"{first} and {second}"
        raise invalid_argument(
            ValueError, WHERE, "module", "a producer whose outputs are the inputs of its consumer", got
        )
    if chosen is not None:
        rule = 'None when structure="hidden"'
        raise invalid_argument(
            ValueError, WHERE, "parameters", rule, quoted(chosen), "The pair of layers fixes what is masked."
        )
    found: dict[str, Part] = {rows: ("hidden", units, False), columns: ("hidden", inputs, True)}
    if getattr(producer, "bias", None) is not None:
        found[f"{first}.bias"] = ("hidden", UnitLayout(units.units, 0), False)
    return found


def hidden_pair(module: nn.Module) -> tuple[str, str]:
    """Names of the producer and the consumer of the hidden units of a module."""
    if isinstance(module, TRANSFORMER_LAYERS):
        activation = module.activation
        known = isinstance(activation, ZERO_AT_ZERO) or activation in {nn.functional.relu, nn.functional.gelu}
        if not known:
            raise _no_pair(f"activation {activation!r}")
        return "linear1", "linear2"
    if not isinstance(module, nn.Sequential):
        raise _no_pair(type(module).__name__)
    layers = dict(module.named_children())
    ends = [name for name, layer in layers.items() if isinstance(layer, (nn.Linear, *CONVOLUTIONS))]
    between = [layer for name, layer in layers.items() if name not in ends]
    kinds = {type(layers[name]) for name in ends}
    names = list(layers)
    if len(ends) != 2 or len(kinds) != 1 or (names[0], names[-1]) != (ends[0], ends[1]):
        raise _no_pair(", ".join(type(layer).__name__ for layer in layers.values()))
    for layer in between:
        if not isinstance(layer, ZERO_AT_ZERO):
            raise _no_pair(f"a {type(layer).__name__} between its layers")
    return ends[0], ends[1]


def _no_pair(got: str) -> ValueError:
    pair = "Sequential(Linear, elementwise activations with f(0) = 0, Linear)"
    rule = f'for structure="hidden" a Transformer layer or {pair}'
    remedy = 'Wrap the two layers and what stands between them, or use structure="output" on the first.'
    return invalid_argument(ValueError, WHERE, "module", rule, got, remedy)
