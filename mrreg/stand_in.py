"""Call a module with other tensors in the place of some of its parameters."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from mrreg.paths import parameter

REFUSED = (torch.jit.ScriptModule, nn.DataParallel)  # by functional_call, which says so


def call_with(
    tensors: Mapping[str, Tensor], module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """What `torch.func.functional_call` returns; parameters that are tied to a named one are replaced with it.

    That function lists all parameters and buffers by name before every call, which takes longer than to mask the
    weights of a small Transformer layer.
    """
    if torch.compiler.is_compiling() or torch._C._is_tracing() or isinstance(module, REFUSED):
        return functional_call(module, dict(tensors), args, dict(kwargs))
    instead = {id(parameter(module, name)): tensor for name, tensor in tensors.items()}
    replaced = []
    try:
        for inner in module.modules():
            own = inner._parameters
            for name, value in own.items():
                if id(value) in instead:
                    replaced.append((own, name, value))
                    own[name] = instead[id(value)]  # type: ignore[assignment]
        return module(*args, **kwargs)
    finally:
        for own, name, value in replaced:
            own[name] = value
