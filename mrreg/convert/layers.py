"""Layers that compute what nn.Linear does, seen by a trial."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from mrreg.isolation import deep_copy, random_state_kept
from mrreg.masks.layers import LINEAR, LINEAR_TRANSPOSED, register_layer, registered_layout
from mrreg.module_utils import has_stock_forward


def register_linear_layers(model: nn.Module) -> None:
    """Register the classes of a model that are not torch's and compute what nn.Linear does (seen by a trial)."""
    tried: set[type[nn.Module]] = set()
    for module in model.modules():
        if type(module) not in tried and _may_be_linear(module):
            tried.add(type(module))
            for layout in (LINEAR, LINEAR_TRANSPOSED):
                if _computes_linear(module, transposed=layout is LINEAR_TRANSPOSED):
                    register_layer(type(module), layout)
                    break


def _may_be_linear(module: nn.Module) -> bool:
    """Return True if a module has the parameters of nn.Linear and nothing else, and a forward that is not torch's."""
    own = {name: p for name, p in module._parameters.items() if p is not None}
    weight, bias = own.get("weight"), own.get("bias")
    if isinstance(module, torch.jit.ScriptModule) or registered_layout(module) or has_stock_forward(module):
        return False
    if module._modules or weight is None or own.keys() - {"weight", "bias"} or type(weight) is not nn.Parameter:
        return False
    shaped = weight.dim() == 2 and (bias is None or bias.dim() == 1)
    return shaped and weight.is_floating_point() and not weight.is_meta


def _computes_linear(module: Any, *, transposed: bool) -> bool:
    """Compare a layer with nn.Linear on random inputs and parameters: those it has may hide a difference (LoRA's)."""
    try:
        with random_state_kept(module), torch.no_grad():
            values: dict[str, Tensor] = {name: torch.randn_like(p) for name, p in module.named_parameters()}
            weight = values["weight"].T if transposed else values["weight"]
            inputs = torch.randn(2, 3, weight.shape[1]).to(weight)
            wanted = nn.functional.linear(inputs, weight, values.get("bias"))
            output = functional_call(deep_copy(module), values, (inputs,))
    except Exception:  # it takes something else, or cannot be copied
        return False
    if not isinstance(output, Tensor) or output.shape != wanted.shape:
        return False
    return bool((output - wanted).float().norm() <= 1e-2 * wanted.float().norm())
