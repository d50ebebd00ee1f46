"""Choose the parameters of a module that a mask covers, and which of their dimensions count the units of a layer."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.utils import spectral_norm, weight_norm
from torch.nn.utils.parametrize import ParametrizationList

from mrreg.errors import check, invalid_argument, unknown_name
from mrreg.isolation import deep_copy

WHERE = "MultirateMask"
Structure = Literal["weight", "input", "output"]
STRUCTURES = get_args(Structure)
NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
DIMENSIONS: tuple[tuple[tuple[type[nn.Module], ...], tuple[str, ...]], ...] = (
    ((nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.MultiheadAttention), ("output", "input")),
    ((*TRANSPOSED, nn.Embedding, nn.EmbeddingBag), ("input", "output")),
    ((nn.RNNBase, nn.RNNCellBase), ("gates", "input")),
    ((nn.Bilinear,), ("output",)),  # two inputs, neither of which is the input
)
HOOK_MODULES = (weight_norm.__module__, spectral_norm.__module__)  # these compute a weight by a hook on the module


@dataclass(frozen=True)
class MaskTarget:
    """One masked parameter of a module."""

    name: str  # its dotted name (the first, where it is tied)
    group: str  # of parameters that share one draw of units; one that is drawn by entries is its own group
    dim: int | None = None  # of the parameter that counts units; None for entries drawn one by one
    units: int = 0
    keeps_rows: bool = False  # that would be absent as a whole: they may be divided by their norm

    def spread(self, bits: Tensor, shape: torch.Size) -> Tensor:
        """Return bits of units, or of entries, in a shape that broadcasts over the parameter's."""
        if self.dim is not None:
            bits = bits.view([-1 if dim == self.dim else 1 for dim in range(len(shape))])
        if self.keeps_rows and bits.numel():
            bits = bits.expand(shape)
            within = tuple(range(1, len(shape))) or (0,)
            bits = bits.masked_fill((bits == 0).all(dim=within, keepdim=True), -1)
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
    remedy = "Complex parameters cannot be masked: name the others in `parameters`." if value.is_complex() else ""
    rule = "a real floating-point parameter"
    check(value.is_floating_point(), WHERE, name, rule, value.dtype, remedy, TypeError)
    computed = _is_computed_from(layer, leaf)
    if isinstance(layer, ParametrizationList) and not value.is_meta:
        rule, got = "finite where one entry of each row is left", "a parametrization that is not"
        check(_stays_finite(layer, leaf), WHERE, f"the weight of {name}", rule, got, "Mask other parameters.")
    if structure == "weight":
        return MaskTarget(name, name, keeps_rows=computed)
    dims = _dimensions(layer, leaf, value)
    if structure not in dims or (computed and structure == "output"):
        remedy = 'Use structure="weight", or leave it out with `parameters`.'
        rule = f"a parameter with one {structure} dimension when structure={structure!r}"
        raise invalid_argument(ValueError, WHERE, name, rule, f"{type(layer).__name__}.{leaf}", remedy)
    dim = dims.index(structure)
    units = value.shape[dim]
    # rows of one layer are the same units, and so are inputs that both directions of a recurrent layer take
    group = f"{owner}:{units}" if structure == "output" else name
    if leaf.startswith("weight_ih"):
        group = name.removesuffix("_reverse")
    return MaskTarget(name, group, dim, units, computed)


def _dimensions(layer: nn.Module, leaf: str, value: Tensor) -> tuple[str, ...]:
    """Return what the dimensions of a parameter count, the first ones at least."""
    if leaf in {"bias_k", "bias_v"}:  # keys and values that attention learns
        return ()
    dims = next((dims for kinds, dims in DIMENSIONS if isinstance(layer, kinds)), ())
    if value.dim() == 1:
        return tuple(each for each in dims if each != "input")
    return dims[:1] if getattr(layer, "groups", 1) > 1 else dims  # a group of channels has a share of the others


def _makes_a_weight(owner: nn.Module, leaf: str) -> bool:
    """Return False for a length or a small factor of the weight that a parametrization computes."""
    if isinstance(owner, ParametrizationList):
        return owner.get_parameter(leaf).numel() == max(p.numel() for p in owner.parameters(recurse=False))
    return not (leaf.endswith("_g") and f"{leaf[:-1]}v" in owner._parameters)


def _is_computed_from(owner: Any, leaf: str) -> bool:
    """Tell if a parametrization, or a hook of torch's, computes a weight from a parameter, perhaps over its norm."""
    hooks = [hook for hook in owner._forward_pre_hooks.values() if type(hook).__module__ in HOOK_MODULES]
    return isinstance(owner, ParametrizationList) or any(leaf.startswith(f"{hook.name}_") for hook in hooks)


def _stays_finite(owner: ParametrizationList, leaf: str) -> bool:
    """Tell if the weight computed from a parameter is finite with all but the first entry of each row at zero."""
    twin = deep_copy(owner).eval()  # else a spectral norm iterates
    value = twin.get_parameter(leaf).data
    value.view(len(value) if value.dim() > 1 else 1, -1)[:, 1:] = 0
    with torch.no_grad():
        return bool(twin().isfinite().all())
