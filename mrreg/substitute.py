"""Masked tensors that stand in for parameters: a bitwise AND, so that NaN and inf at slow entries vanish too."""

from typing import Any

import torch
from torch import Tensor

BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by the size of an entry in bytes


def bits_dtype(value: Tensor) -> torch.dtype:
    """The integer type with the size of a tensor's entries."""
    return BITS[value.element_size()]


def as_bits(value: Tensor) -> Tensor:
    """The same memory, read as integers."""
    return value.view(bits_dtype(value))


class _Masked(torch.autograd.Function):
    """scale * (value & bits), whose derivative is the same function of the gradient."""

    generate_vmap_rule = True

    @staticmethod
    def forward(value: Tensor, bits: Tensor, scale: float) -> Tensor:
        out = torch.bitwise_and(as_bits(value), bits).view(value.dtype)
        return out if scale == 1 else out.mul_(scale)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, float], output: Tensor) -> None:
        ctx.bits, ctx.scale = inputs[1:]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return masked(grad, ctx.bits, ctx.scale), None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: None) -> Tensor:
        return masked(tangent, ctx.bits, ctx.scale)


def masked(value: Tensor, bits: Tensor, scale: float) -> Tensor:
    """The tensor with its slow entries at zero and the others times `scale`; slow entries get no gradient."""
    if torch.compiler.is_compiling():  # a select that the compiler fuses
        kept = torch.where(bits != 0, value, 0.0)
        return kept if scale == 1 else kept * scale
    return _Masked.apply(value, bits, scale)  # type: ignore[no-any-return]
