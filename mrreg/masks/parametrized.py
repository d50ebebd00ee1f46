"""Parameters from which a module computes its weight: weight_norm, spectral_norm and other parametrizations."""

from typing import Any

from torch import Tensor, nn
from torch.nn.utils import parametrizations, spectral_norm, weight_norm
from torch.nn.utils.parametrize import ParametrizationList

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
