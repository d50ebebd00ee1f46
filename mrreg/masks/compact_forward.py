"""Compact masked steps: dropped units are left out of the computation instead of being multiplied by zero.

A unit mask is the same for the whole batch and for all masked steps of a cycle. So the kept rows or columns of the
weights are gathered, the smaller layers run, and the result is scattered where the next layer expects its full width.
Autograd scatters the gradients back: dropped entries get exactly zero.

The numbers are those of the masked weights, to rounding, whenever what the dropped units would have computed is finite.
Zero times inf or NaN is NaN with masked weights; here it is never computed and drops out. A random layer between the
two layers of a hidden pair (the dropout inside a Transformer layer) draws for the kept units only.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from mrreg.masks.functional_call import functional_call
from mrreg.masks.kept_entries import KeptUnits
from mrreg.masks.masked_tensor import Masking, ReusableBuffer, masked
from mrreg.module_utils import has_global_hooks, is_stock, parameter

# Minimum multiply-adds saved per gathered entry of a weight for compact steps to pay off. CPU: measured; elsewhere the
# arithmetic is faster and the copy is not, so more must be saved.
PAYS_CPU = 32
PAYS_ELSEWHERE = 512
FEATURE_LINEAR, FEATURE_CONV = 3, 9  # cost of gathering or scattering a feature, in gathered entries (measured)
BLOCK = 8  # channels_last convolutions fall off their fast path unless their width is a multiple of this

LINEAR_FORWARD = nn.Linear.forward  # others may patch the class later
SINGLE = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
PAIRED = (nn.Sequential, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)


class Units(KeptUnits):
    """The kept units of one parameter: their indices, ascending, along its dimension `dim`; `scale` multiplies them."""

    def __init__(self, dim: int, kept: Tensor, scale: float = 1.0, gradients: ReusableBuffer | None = None) -> None:
        super().__init__(scale, gradients)
        self.dim, self.kept = dim, kept
        self._kept = {dim: kept}

    def dropped(self, parameter: Tensor) -> int:
        """Return the number of units of a parameter that are left out."""
        return parameter.shape[self.dim] - len(self.kept)


def should_use(module: nn.Module, structure: str, units: Mapping[str, Units], args: Sequence[Any]) -> bool:
    """Return True if a masked step leaves the dropped units out: it does where that is possible and saves time."""
    known = type(module) in (PAIRED if structure == "hidden" else SINGLE) and structure != "weight"
    return known and pays(module, structure, units, args) and unnoticed(module) and _together(module, units)


def _together(module: nn.Module, units: Mapping[str, Units]) -> bool:
    """Return True if parameters are on the device of their draws; shards may rest on another one."""
    return all(parameter(module, name).device == drawn.kept.device for name, drawn in units.items())


def unnoticed(module: nn.Module) -> bool:
    """Return True if smaller tensors can stand in for the module's parameters without anybody noticing.

    Hooks and changed forwards inside the module would see them, tensor subclasses and parametrizations cannot be
    gathered, groups tie channels together. Global module hooks are not asked: they may see what is really computed.
    """
    return all(map(is_plain, module.modules()))


def is_plain(module: nn.Module) -> bool:
    """Return True if a module computes what its torch class does, from plain tensors, whatever their width."""
    if module.__dict__.get("groups", 1) != 1 or (isinstance(module, nn.PReLU) and module.num_parameters > 1):
        return False
    plain = (type(p) in (Tensor, nn.Parameter) for p in module._parameters.values() if p is not None)
    return is_stock(module) and all(plain)


def pays(module: nn.Module, structure: str, units: Mapping[str, Units], args: Sequence[Any]) -> bool:
    """Estimate from sizes alone if leaving the dropped units out saves more than gathering the kept ones costs."""
    weights = {name: parameter(module, name) for name in units if name.endswith("weight")}
    if not weights or not args or not isinstance(args[0], Tensor):
        return False
    (features, *_), (name, weight) = args, next(iter(weights.items()))
    if not weight.numel() or not len(units[name].kept):
        return False
    if not weight.is_contiguous() and len(units[name].kept) % BLOCK:
        return False
    rows = features.numel() // _inputs(weight) // prod(getattr(module, "stride", ()))
    others = {name: w.numel() // w.shape[units[name].dim] for name, w in weights.items()}
    saved = 3 * rows * sum(units[name].dropped(w) * others[name] for name, w in weights.items())
    cost = sum(len(units[name].kept) * others[name] for name in weights)
    if structure != "hidden":  # the features are gathered or scattered as well
        if features.dim() < weight.dim() - 1 or features.shape[_channel(weight)] != _inputs(weight):
            return False  # torch's own message shall show the full width
        cost += rows * weight.shape[units[name].dim] * (FEATURE_LINEAR if weight.dim() == 2 else FEATURE_CONV)
    wanted = PAYS_CPU if features.device.type == "cpu" else PAYS_ELSEWHERE
    return bool(saved > wanted * cost)


def _inputs(weight: Tensor) -> int:
    """Return the width of input that a weight of Linear or Conv expects."""
    return weight.shape[1]


def _channel(weight: Tensor) -> int:
    """Return the dimension of features that counts units: the last for Linear, before the spatial ones for Conv."""
    return -1 if weight.dim() == 2 else 1 - weight.dim()


def forward(
    module: nn.Module, structure: str, units: Mapping[str, Units], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Compute the module with all but the kept units at zero.

    `units` names every parameter that holds units of the mask: for "input" the weight, for "output" the weight and
    (if masked) the bias, for "hidden" the producer's weight and bias and the consumer's weight.
    """
    small = {name: kept.gather(parameter(module, name)) for name, kept in units.items()}
    if structure == "hidden":
        return functional_call(small, module, args, kwargs)
    weight, kept = parameter(module, "weight"), units["weight"].kept
    if structure == "input":
        return functional_call(small, module, (args[0].index_select(_channel(weight), kept), *args[1:]), kwargs)
    bias: Any = None if "bias" in units else module.bias
    if bias is not None:
        small["bias"] = bias.index_select(0, kept)
    narrow = functional_call(small, module, args, kwargs)
    shape = list(narrow.shape)
    shape[_channel(weight)] = weight.shape[0]
    rest = narrow.new_zeros(shape)
    if bias is not None:  # an unmasked bias is all that dropped outputs are
        rest = rest + bias.to(narrow.dtype).view(-1, *[1] * (weight.dim() - 2))
    return rest.index_copy(_channel(weight), kept, narrow)


def is_bare_linear(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Return True for one matrix product that nobody watches: calling the module would cost more than the mask."""
    if type(module) is not nn.Linear or nn.Linear.forward is not LINEAR_FORWARD or kwargs or len(args) != 1:
        return False
    return is_plain(module) and not has_global_hooks()


def bare_linear(module: nn.Linear, x: Tensor, masks: Mapping[str, Masking]) -> Tensor:
    """Return the output of a Linear whose weight, and maybe bias, is masked."""
    bias: Tensor | None = module.bias
    if bias is not None and "bias" in masks:
        bias = masked(bias, *masks["bias"])
    # the gradient of a matrix product's weight is nobody else's, and can be masked in place
    weight = masked(parameter(module, "weight"), *masks["weight"], grad_is_exclusive=True)
    return functional.linear(x, weight, bias)
