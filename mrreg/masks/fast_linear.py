"""A linear layer with a masked weight, on an input that needs no gradient: the first layer, or one on frozen features.

Nothing reads the masked weight after the forward, so its gradient is computed into the same memory. That memory is
still in the cache, where memory of its own for each would push out more than the mask costs.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional

from mrreg.masks import compact_forward as compact
from mrreg.masks.masked_tensor import Mask, MaskBuffers, masked, masked_in_place, masked_into, select

FORWARD = nn.Linear.forward  # which others may replace later


def is_bare(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a module is one matrix product and nobody watches it: then calling it costs more."""
    if type(module) is not nn.Linear or kwargs or len(args) != 1 or not compact.ordinary(module):
        return False
    return nn.Linear.forward is FORWARD and not nn.modules.module._has_any_global_hook()  # type: ignore[no-untyped-call]


def forward(module: nn.Linear, x: Tensor, masks: Mapping[str, Mask]) -> Tensor:
    """The output of a bare layer whose weight is masked, and maybe its bias."""
    parameters: dict[str, Any] = module._parameters  # without the detour of __getattr__
    weight, bias = parameters["weight"], parameters["bias"]
    if "bias" not in masks and applies(x, weight):
        return linear(x, weight, bias, *masks["weight"])
    if "bias" in masks:
        bias = masked(bias, *masks["bias"])
    return functional.linear(x, masked(weight, *masks["weight"], grad_is_exclusive=True), bias)


def applies(x: Tensor, weight: Tensor) -> bool:
    """Whether `linear` computes all that a graph through these tensors could ask for."""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return False
    if torch.is_inference_mode_enabled() or torch.is_autocast_enabled("cpu"):
        return False
    if type(x) is not Tensor or x.layout is not torch.strided or x.dim() != 2:
        return False
    return weight.requires_grad and not x.requires_grad and x.device.type == weight.device.type == "cpu"


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, bits: Tensor, scale: float, own: MaskBuffers) -> Tensor:
    """The layer's output with scale * (weight & bits) for its weight."""
    return _Linear.apply(x, weight, bias, bits, scale, own)  # type: ignore[no-any-return]


class _Linear(torch.autograd.Function):
    """x W^T + b for the masked W, whose gradient is scale * (g^T x & bits)."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, bits: Tensor, scale: float, own: MaskBuffers
    ) -> Tensor:
        ctx.save_for_backward(x)
        ctx.weight, ctx.bits, ctx.scale, ctx.own = weight, bits, scale, own
        return functional.linear(x, masked_into(own.values, weight, bits, scale), bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        weight = _gradient(grad, x, ctx.weight, ctx.bits, ctx.scale, ctx.own)
        return None, weight, grad.sum(0) if ctx.needs_input_grad[2] else None, None, None, None


def _gradient(grad: Tensor, x: Tensor, weight: Tensor, bits: Tensor, scale: float, own: MaskBuffers) -> Tensor:
    """The weight's gradient from that of the output."""
    if torch._C._functorch.is_legacy_batchedtensor(grad) or torch._C._are_functorch_transforms_active():
        return select(grad.t() @ x, bits) * scale
    if torch.is_grad_enabled():  # somebody differentiates the gradient
        return masked(grad.t() @ x, bits, scale, MaskBuffers())
    like = weight if weight.dtype == grad.dtype else grad.new_empty(weight.shape)  # cast since the forward
    return masked_in_place(torch.mm(grad.t(), x, out=own.values.empty_like(like)), bits, scale)
