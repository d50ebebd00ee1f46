"""The computation that compact masked steps must equal: full width, with zeros in the masked weights."""

from collections.abc import Callable
from typing import Any

import torch
from mrreg.masks.compact_forward import Units
from torch import Tensor, nn
from torch.func import functional_call


def units_of(
    module: nn.Module, structure: str, kept: Tensor, scale: float = 1.0, bias: bool = True
) -> dict[str, Units]:
    """What a unit mask of this structure keeps, parameter by parameter."""
    if structure == "input":
        return {"weight": Units(1, kept, scale)}
    if structure == "output":
        names = [name for name, _ in module.named_parameters() if bias or name == "weight"]
        return {name: Units(0, kept, scale) for name in names}
    first, second = ("0", "2") if isinstance(module, nn.Sequential) else ("linear1", "linear2")
    pair_units = {f"{first}.{name}": Units(0, kept) for name, _ in module.get_submodule(first).named_parameters()}
    return pair_units | {f"{second}.weight": Units(1, kept, scale)}


def masked_call(module: nn.Module, units: dict[str, Units], *args: Tensor) -> Any:
    """The oracle: full width, dropped entries at zero (also where they are NaN), kept ones scaled."""
    full = {}
    for name, drawn in units.items():
        dim, kept, scale = drawn.dim, drawn.kept, drawn.scale
        parameter = module.get_parameter(name)
        keep = torch.zeros(parameter.shape[dim], dtype=torch.bool).index_fill(0, kept, True)
        shape = [1] * parameter.dim()
        shape[dim] = -1
        full[name] = torch.where(keep.view(shape), parameter * scale, torch.zeros_like(parameter))
    return functional_call(module, full, args)


def gradients(module: nn.Module, features: Tensor, run: Callable[[], Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Output and the gradients of input and parameters for one random cotangent."""
    out = run()
    cotangent = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)
    leaves = [features, *module.parameters()]
    return out.detach(), list(torch.autograd.grad(out, leaves, cotangent, materialize_grads=True))
