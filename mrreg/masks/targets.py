"""Choose the parameters of a module that a mask covers, and what is drawn together in them."""

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, get_args

from torch import Tensor, nn

from mrreg.errors import invalid_argument, quoted, unknown_name
from mrreg.masks.layers import CONVOLUTIONS, UnitLayout, find_layout, makes_a_weight, normalized_dims

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


@dataclass(frozen=True)
class MaskTarget:
    """One masked parameter of a wrapped module.

    Args:
        name: Its dotted name in the wrapped module (the first, where it is tied).
        names: All its names.
        group: Parameters of one group share one draw of units; a parameter drawn by entries is its own group.
        layout: Layout of the units in it; None for entries drawn one by one.
        rescaled: True if `rescale` divides it (a hidden unit is scaled once, by its consumer).
        normalized: Dimensions over which the module divides by a norm: there, not all entries may be zero.
    """

    name: str
    names: tuple[str, ...]
    group: str
    layout: UnitLayout | None = None
    rescaled: bool = True
    normalized: tuple[int, ...] = ()

    def keep_some(self, bits: Tensor) -> Tensor:
        """Keep all entries that share a norm where all of them were slow: zero divided by zero is not a number."""
        if not self.normalized or not bits.numel():
            return bits
        return bits.masked_fill((bits == 0).all(dim=self.normalized, keepdim=True), -1)


def _split(name: str) -> tuple[str, str]:
    """Split a dotted name into its owner and the last part: 'a.b.weight' -> ('a.b', 'weight')."""
    owner, _, leaf = name.rpartition(".")
    return owner, leaf


def _by_default(module: nn.Module, name: str, value: Tensor) -> bool:
    """Return True for a weight with at least two dimensions that is not of a normalization layer."""
    path, leaf = _split(name)
    owner = module.get_submodule(path)
    fits = value.dim() >= 2 and value.is_floating_point() and makes_a_weight(owner, leaf, value)
    return fits and not isinstance(owner, NORMS) and not leaf.startswith("bias")


def _matches(pattern: object, name: str, value: Tensor) -> bool:
    """Return True if one element of `parameters` (a name, a glob pattern or the tensor itself) means this parameter."""
    return fnmatchcase(name, pattern) if isinstance(pattern, str) else pattern is value


def _chosen(module: nn.Module, named: dict[str, Tensor], wanted: Iterable[object] | None) -> dict[str, Tensor]:
    """Return the parameters to mask, by name."""
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
    """Refuse complex and integer parameters, and embeddings whose forward or gradient is not that of a weight."""
    if not value.is_floating_point():
        raise invalid_argument(TypeError, WHERE, name, "a floating-point parameter", value.dtype)
    owner = module.get_submodule(_split(name)[0])
    if getattr(owner, "sparse", False):
        rule, got = "the weight of an embedding with dense gradients", "sparse=True"
        remedy = "An optimizer of sparse gradients cannot hold single entries; use sparse=False."
        raise invalid_argument(ValueError, WHERE, name, rule, got, remedy)
    if getattr(owner, "max_norm", None) is not None and isinstance(owner, nn.Embedding | nn.EmbeddingBag):
        rule, got = "the weight of an embedding without max_norm", f"max_norm={owner.max_norm}"
        remedy = "It writes into the weight during the forward, where a mask has a copy."
        raise invalid_argument(ValueError, WHERE, name, rule, got, remedy)


def find_targets(module: nn.Module, wanted: Iterable[object] | None, structure: Structure) -> list[MaskTarget]:
    """Return the parameters that a mask with this structure covers, in the module's order."""
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
    return [_mask_target(module, name, every, found[name]) for name in order]


def _mask_target(module: nn.Module, name: str, names: dict[int, list[str]], part: "Part") -> MaskTarget:
    owner, leaf = _split(name)
    value = module.get_parameter(name)
    return MaskTarget(name, tuple(names[id(value)]), *part, normalized_dims(module.get_submodule(owner), leaf, value))


Part = tuple[str, UnitLayout | None, bool]  # group, layout, rescaled


def _target(module: nn.Module, name: str, value: Tensor, structure: Structure) -> Part:
    """Return group and layout of one parameter for every structure but 'hidden'."""
    if structure == "weight":
        return name, None, True
    owner, leaf = _split(name)
    layer = module.get_submodule(owner)
    layout = find_layout(layer, leaf, value, structure)
    if layout is None:
        remedy = 'Use structure="weight", or leave it out with `parameters`.'
        rule = f"a parameter with one {structure} dimension when structure={structure!r}"
        raise invalid_argument(ValueError, WHERE, name, rule, f"{type(layer).__name__}.{leaf}", remedy)
    return _group(layer, name, layout.units, structure), layout, True


def _group(layer: nn.Module, name: str, units: int, structure: Structure) -> str:
    """Return a name for the parameters that have their units in common.

    Rows of one layer do (weight, bias, the two matrices of a recurrent layer); columns only where both directions of a
    recurrent layer take the same input.
    """
    owner, leaf = _split(name)
    recurrent = isinstance(layer, nn.RNNBase)
    if structure == "output":
        suffix = leaf[leaf.find("_l") :] if recurrent and "_hr" not in leaf else ""
        return f"{owner}:{suffix}:{units}"
    return name.removesuffix("_reverse") if recurrent and leaf.startswith("weight_ih") else name


def _hidden(module: nn.Module, chosen: dict[str, Tensor] | None) -> dict[str, Part]:
    """Return producer's rows and bias and consumer's columns, with one draw for the units between the two."""
    first, second = hidden_pair(module)
    producer, consumer = module.get_submodule(first), module.get_submodule(second)
    rows, columns = f"{first}.weight", f"{second}.weight"
    units = find_layout(producer, "weight", producer.get_parameter("weight"), "output")
    inputs = find_layout(consumer, "weight", consumer.get_parameter("weight"), "input")
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
    """Return the names of the producer and the consumer of a module's hidden units."""
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
