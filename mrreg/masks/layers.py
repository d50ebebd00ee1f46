"""Choose the parameters of a module that a mask covers, and which of their dimensions count the units of a layer."""

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import chain, combinations
from typing import Any, Literal, get_args
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import spectral_norm, weight_norm
from torch.nn.utils.parametrize import ParametrizationList

from mrreg.errors import check, invalid_argument, unknown_name
from mrreg.isolation import left_as_it_was
from mrreg.module_utils import has_stock_forward, rebuild_attributes

WHERE = "MultirateMask"
Structure = Literal["weight", "input", "output"]
STRUCTURES = get_args(Structure)
NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
RECURRENT = (nn.RNNBase, nn.RNNCellBase)
ROWS_AND_COLUMNS, COLUMNS_AND_ROWS = ("output", "input"), ("input", "output")
DIMENSIONS: tuple[tuple[tuple[type[nn.Module], ...], tuple[str, ...]], ...] = (
    ((nn.Linear, *CONVOLUTIONS, *RECURRENT, nn.MultiheadAttention), ROWS_AND_COLUMNS),
    ((*TRANSPOSED, nn.Embedding, nn.EmbeddingBag), COLUMNS_AND_ROWS),
    ((nn.Bilinear,), ("output",)),  # two inputs, neither of which is the input
)
HOOK_MODULES = (weight_norm.__module__, spectral_norm.__module__)  # these compute a weight by a hook on the module
_linear: "WeakKeyDictionary[type[nn.Module], tuple[str, ...]]" = WeakKeyDictionary()


@dataclass(frozen=True)
class UnitLayout:
    """Units of a layer in one parameter, and how one bit per unit spreads over it."""

    units: int
    dim: int  # of the parameter that counts units
    repeats: int = 1  # times that the units follow one another along `dim` (the gates of an LSTM)
    groups: int = 1  # blocks of rows that have a share of the units each (grouped convolutions; then `dim` is 1)

    def spread(self, bits: Tensor, shape: torch.Size) -> Tensor:
        """Return bits of the units, (units,), in a shape that broadcasts over the parameter's."""
        tail = (1,) * (len(shape) - self.dim - 1)
        if self.groups > 1:
            rows = bits.view(self.groups, 1, -1).expand(-1, shape[0] // self.groups, -1)
            return rows.reshape(shape[0], -1, *tail)
        return bits.repeat(self.repeats).view((1,) * self.dim + (-1, *tail))


@dataclass(frozen=True)
class MaskTarget:
    """One masked parameter of a module."""

    name: str  # its dotted name (the first, where it is tied)
    group: str  # of parameters that share one draw of units; one that is drawn by entries is its own group
    layout: UnitLayout | None = None  # of the units in it; None for entries drawn one by one
    normalized: tuple[tuple[int, ...], ...] = ()  # dimensions that are divided by a norm: there, not all may be zero

    def keep_some(self, bits: Tensor, shape: torch.Size) -> Tensor:
        """Keep all entries that share a norm where all of them were slow: zero divided by zero is not a number."""
        for dims in self.normalized if bits.numel() else ():
            bits = bits.expand(shape)
            bits = bits.masked_fill((bits == 0).all(dim=dims, keepdim=True), -1)
        return bits


def find_targets(module: nn.Module, wanted: Iterable[object] | None, structure: Structure) -> list[MaskTarget]:
    """Return the parameters that a mask with this structure covers, in the module's order."""
    chosen = {id(value) for value in _chosen(module, dict(module.named_parameters(remove_duplicate=False)), wanted)}
    found = [_target(module, name, structure) for name, value in module.named_parameters() if id(value) in chosen]
    remedy = "Mask a layer that has a weight, or name what to mask in `parameters`."
    check(found, WHERE, "module", "a module with a parameter to mask", type(module).__name__, remedy)
    return found


def _by_default(module: nn.Module, name: str, value: Tensor) -> bool:
    """Return True for a weight with at least two dimensions that is not of a normalization layer."""
    path, _, leaf = name.rpartition(".")
    owner = module.get_submodule(path)
    fits = value.dim() >= 2 and (value.is_floating_point() or value.is_complex()) and _makes_a_weight(owner, leaf)
    return fits and not isinstance(owner, NORMS) and not leaf.startswith("bias")


def _chosen(module: nn.Module, every: Mapping[str, Tensor], wanted: Iterable[object] | None) -> list[Tensor]:
    """Return the parameters that names, glob patterns or tensors mean."""
    if wanted is None:
        return [value for name, value in every.items() if _by_default(module, name, value)]
    several = "several names, glob patterns or parameters"
    check(isinstance(wanted, Iterable), WHERE, "parameters", several, wanted, kind=TypeError)
    found: list[Tensor] = []
    for pattern in [wanted] if isinstance(wanted, str) else wanted:
        if isinstance(pattern, str):
            hits = [value for name, value in every.items() if fnmatchcase(name, pattern)]
            if not hits:
                raise unknown_name(WHERE, "parameters", "names or patterns that match a parameter", pattern, every)
        elif isinstance(pattern, Tensor):
            hits = [value for value in every.values() if value is pattern]
            check(hits, WHERE, "parameters", "parameters of the module", f"a tensor {tuple(pattern.shape)}")
        else:
            rule = "names, glob patterns or parameters of the module"
            raise invalid_argument(TypeError, WHERE, "parameters", rule, pattern)
        found += hits
    return found


def _target(module: nn.Module, name: str, structure: Structure) -> MaskTarget:
    """Return what is drawn in one parameter."""
    owner, _, leaf = name.rpartition(".")
    layer, value = module.get_submodule(owner), module.get_parameter(name)
    _refuse_unfit(layer, name, value)
    normalized = _normalized(layer, leaf, name, value)
    if structure == "weight":
        return MaskTarget(name, name, None, normalized)
    layout = find_layout(layer, leaf, value, structure)
    if layout is None:
        remedy = 'Use structure="weight", or leave it out with `parameters`.'
        rule = f"a parameter with one {structure} dimension when structure={structure!r}"
        raise invalid_argument(ValueError, WHERE, name, rule, f"{type(layer).__name__}.{leaf}", remedy)
    return MaskTarget(name, _group(layer, name, layout.units, structure), layout, normalized)


def _refuse_unfit(owner: nn.Module, name: str, value: Tensor) -> None:
    """Refuse complex and integer parameters, and embeddings whose forward or gradient is not that of a weight."""
    remedy = "Complex parameters cannot be masked: name the others in `parameters`." if value.is_complex() else ""
    rule = "a real floating-point parameter"
    check(value.is_floating_point(), WHERE, name, rule, value.dtype, remedy, TypeError)
    rule, remedy = "with dense gradients", "An optimizer of sparse gradients cannot hold single entries."
    sparse = getattr(owner, "sparse", False)
    check(
        not sparse,
        WHERE,
        name,
        f"the weight of an embedding {rule}",
        "sparse=True",
        f"{remedy[:-1]}; use sparse=False.",
    )
    rule, remedy = (
        "the weight of an embedding without max_norm",
        "It writes into the weight during the forward, where a mask has a copy.",
    )
    norm = owner.max_norm if isinstance(owner, nn.Embedding | nn.EmbeddingBag) else None
    check(norm is None, WHERE, name, rule, f"max_norm={norm}", remedy)


def _group(layer: nn.Module, name: str, units: int, structure: Structure) -> str:
    """Return a name for the parameters that have their units in common.

    Rows of one layer do (weight, bias, the two matrices of a recurrent layer); columns only where both directions of a
    recurrent layer take the same input.
    """
    owner, _, leaf = name.rpartition(".")
    recurrent = isinstance(layer, nn.RNNBase)
    if structure == "output":
        suffix = leaf[leaf.find("_l") :] if recurrent and "_hr" not in leaf else ""
        return f"{owner}:{suffix}:{units}"
    return name.removesuffix("_reverse") if recurrent and leaf.startswith("weight_ih") else name


def find_layout(layer: nn.Module, leaf: str, value: Tensor, structure: str) -> UnitLayout | None:
    """Return the layout of "input" or "output" units in a parameter of a layer; None if no one dimension has them."""
    dims = _dimensions(layer, leaf, value)
    if structure not in dims:
        return None
    dim = dims.index(structure)
    groups = getattr(layer, "groups", 1) if dim == 1 else 1
    repeats = 1
    if isinstance(layer, RECURRENT) and structure == "output" and "_hr" not in leaf:
        repeats = value.shape[dim] // int(layer.hidden_size)  # gates; the projection of an LSTM has none
    return UnitLayout(value.shape[dim] * groups // repeats, dim, repeats, groups)


def _dimensions(layer: nn.Module, leaf: str, value: Tensor) -> tuple[str, ...]:
    """Return what the dimensions of a parameter count, the first ones at least."""
    if leaf in {"bias_k", "bias_v"}:  # keys and values that attention learns
        return ()
    dims = next((dims for kinds, dims in DIMENSIONS if isinstance(layer, kinds)), None) or _linear_dimensions(layer)
    return dims if value.dim() > 1 else ("output",) * bool(dims)


def _linear_dimensions(layer: nn.Module) -> tuple[str, ...]:
    """Return the order of the weight's dimensions in a layer of another library that computes what nn.Linear does."""
    if type(layer) not in _linear:
        orders = (ROWS_AND_COLUMNS, COLUMNS_AND_ROWS) if _may_be_linear(layer) else ()
        _linear[type(layer)] = next((order for order in orders if _computes_linear(layer, order)), ())
    return _linear[type(layer)]


def _may_be_linear(layer: nn.Module) -> bool:
    """Return True if a module has the parameters of nn.Linear and nothing else, and a forward that is not torch's."""
    own = {name: p for name, p in layer._parameters.items() if p is not None}
    weight, bias = own.get("weight"), own.get("bias")
    if has_stock_forward(layer) or layer._modules or weight is None or own.keys() - {"weight", "bias"}:
        return False
    shaped = weight.dim() == 2 and (bias is None or bias.dim() == 1)
    return shaped and type(weight) is nn.Parameter and weight.is_floating_point() and not weight.is_meta


def _computes_linear(layer: nn.Module, order: tuple[str, ...]) -> bool:
    """Compare with nn.Linear on random inputs and parameters: those that the layer has may hide a difference."""
    try:
        twin: Any = copy.deepcopy(layer).eval()
        with torch.random.fork_rng([layer.weight.device] if twin.weight.is_cuda else []), torch.no_grad():
            values: dict[str, Tensor] = {name: torch.randn_like(p) for name, p in twin.named_parameters()}
            weight = values["weight"] if order is ROWS_AND_COLUMNS else values["weight"].T
            inputs = torch.randn(2, 3, weight.shape[1], device=weight.device).to(weight)
            output = functional_call(twin, values, (inputs,))
        wanted = nn.functional.linear(inputs, weight, values.get("bias"))
        return bool((output - wanted).float().norm() <= 1e-2 * wanted.float().norm())
    except Exception:  # it takes or gives something else, or cannot be copied
        return False


def _makes_a_weight(owner: nn.Module, leaf: str) -> bool:
    """Return False for a length or a small factor of the weight that a parametrization computes."""
    if isinstance(owner, ParametrizationList):
        return owner.get_parameter(leaf).numel() == max(p.numel() for p in owner.parameters(recurse=False))
    return not (leaf.endswith("_g") and f"{leaf[:-1]}v" in owner._parameters)


def _normalized(owner: nn.Module, leaf: str, name: str, value: Tensor) -> tuple[tuple[int, ...], ...]:
    """Return the smallest sets of dimensions over which the weight that a parameter makes is divided by a norm.

    Its weight is computed, as the module does it, with a slice of the parameter at zero.
    """
    weight = _weight_attribute(owner, leaf)
    if weight is None or value.is_meta:
        return ()
    before, found = value.data, list[tuple[int, ...]]()
    try:
        with left_as_it_was(owner):
            owner.eval()  # else a spectral norm iterates
            every = chain.from_iterable(combinations(range(value.dim()), size) for size in range(value.dim() + 1))
            for dims in every if _finite(owner, weight) else ():
                if not any(set(smaller) <= set(dims) for smaller in found):
                    value.data = before.clone()
                    value.data[tuple(slice(None) if d in dims else 0 for d in range(value.dim()))] = 0
                    if not _finite(owner, weight):
                        found.append(dims)
    finally:
        value.data = before
        rebuild_attributes([owner])
    rule, got = "finite wherever an entry of it is zero", "a parametrization that is not"
    check(() not in found, WHERE, f"the weight of {name}", rule, got, "Mask other parameters.")
    return tuple(found)


def _weight_attribute(owner: nn.Module, leaf: str) -> str | None:
    """Return the name of what a module computes from a parameter, by a parametrization ("") or a hook of torch's."""
    if isinstance(owner, ParametrizationList):
        return ""
    for hook in owner._forward_pre_hooks.values():
        name = getattr(hook, "name", None)
        if type(hook).__module__ in HOOK_MODULES and isinstance(name, str) and leaf.startswith(f"{name}_"):
            return name
    return None


@torch.no_grad()
def _finite(owner: Any, weight: str) -> bool:
    """Compute the weight anew, and tell if it is finite."""
    rebuild_attributes([owner])
    made: Tensor = getattr(owner, weight) if weight else owner()
    return bool(made.isfinite().all())
