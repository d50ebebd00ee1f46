"""Masked tensors that stand for parameters in a forward, and their gradients.

Masking is a bitwise AND with integers as wide as the entries (all bits set where kept, zero where slow): cheaper than a
product, and NaN and inf at slow entries vanish too.
"""

from collections.abc import Callable
from sys import getrefcount
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn


class ReusableBuffer:
    """Memory for one tensor, handed out again once nobody else uses it."""

    _storage: torch.UntypedStorage  # of the memory, once there is any

    def __init__(self) -> None:
        self.used = False  # set by whoever fills it in a backward pass
        self._tensor = torch.empty(0)
        self._asked: object = None  # the request that the memory was made for
        self._thread = 0  # that may use it again: another one could take it between the look at its users and its use
        self.address = 0  # changes where it is resized, or moved to memory that processes share
        self._idle = 0, 0  # its users when nobody else has it

    def get(self, shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return an uninitialized contiguous tensor."""
        return self.empty_like(torch.empty((), dtype=dtype, device=device).expand(shape))

    def empty_like(self, value: Tensor) -> Tensor:
        """Return an uninitialized tensor with the shape, strides, type and device of another."""
        plain = (
            type(value) in (Tensor, nn.Parameter) and value.device.type == "cpu"
        )  # a sharded one looks like the whole
        if not plain or (self._thread and self._thread != get_ident()):
            return torch.empty_like(value, requires_grad=False)
        asked = value.shape, value.stride(), value.dtype
        if asked != self._asked or not self._is_free():
            fresh = torch.empty_like(value, requires_grad=False)
            if type(fresh) is not Tensor:  # one without data, of a dry run, is of no use later
                return fresh
            self._tensor, self._asked, self._thread = fresh, asked, get_ident()
            self._storage, self.address = fresh.untyped_storage(), fresh.data_ptr()
            self._idle = self._users()
        return self._tensor.detach()

    def _is_free(self) -> bool:
        return self._tensor.data_ptr() == self.address and self._users() == self._idle

    def _users(self) -> tuple[int, int]:
        """Count the tensors (in Python, in graphs, as gradients) that share the memory, and holders of its storage."""
        return torch._C._storage_Use_Count(self._storage._cdata), getrefcount(self._storage)


BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by the size of an entry in bytes


def bits_dtype(value: Tensor) -> torch.dtype:
    """Return the integer type with the size of a tensor's entries."""
    return BITS[value.element_size()]


def as_bits(value: Tensor) -> Tensor:
    """Return the same memory, read as integers."""
    return value.view(bits_dtype(value))


def as_floats(bits: Tensor, value: Tensor) -> Tensor:
    """Return bits, read as entries of a tensor: NaN where kept, zero where slow.

    Compilers for CPUs compare numbers of one type fast, and select by whole numbers or truth values slowly.
    """
    return bits.view(value.dtype)


class MaskBuffers:
    """Memory, used again, for the bits, the masked tensor and the gradient of one parameter."""

    def __init__(self) -> None:
        self.bits, self.values, self.gradients = ReusableBuffer(), ReusableBuffer(), ReusableBuffer()
        self.backward_ran = False  # since the last masked forward


Masking = tuple[Tensor, float, MaskBuffers]  # of a parameter: bits, the factor of kept entries, and memory


def masked(value: Tensor, bits: Tensor, scale: float, buffers: MaskBuffers, grad_is_exclusive: bool = False) -> Tensor:
    """Return the tensor with zeros at slow entries and the others times `scale`; slow entries get no gradient.

    Args:
        value: Parameter, or what stands for it.
        bits: -1 where kept, 0 where slow; they broadcast over the value.
        scale: Factor of kept entries.
        buffers: Memory for the result and its gradient.
        grad_is_exclusive: True if nobody else sees the gradient of the result, as for a matrix product: it may be
            masked in place.
    """
    if torch._C._are_functorch_transforms_active():
        how: Callable[[Tensor, Tensor], Any] = select
    elif torch.compiler.is_compiling():
        how = _Selected.apply
    elif torch.is_inference_mode_enabled():
        how = select  # reused memory would become memory of inference mode
    else:
        return _Masked.apply(value, bits, scale, buffers, grad_is_exclusive)  # type: ignore[no-any-return]
    kept: Tensor = how(value, bits)
    return kept if scale == 1 else kept * scale


def select(value: Tensor, bits: Tensor) -> Tensor:
    """Return entries where bits are set and zeros elsewhere, by what compilers fuse and transforms support."""
    return torch.where(bits != 0, value, 0.0)


def masked_into(work: ReusableBuffer, value: Tensor, bits: Tensor, scale: float) -> Tensor:
    """Compute scale * (value & bits) in the memory of a workspace."""
    out = work.empty_like(value)
    torch.bitwise_and(as_bits(value), bits, out=as_bits(out))
    return out if scale == 1 else out.mul_(scale)


def masked_in_place(value: Tensor, bits: Tensor, scale: float) -> Tensor:
    """Compute scale * (value & bits) in the memory of the value."""
    as_bits(value).bitwise_and_(bits)
    return value if scale == 1 else value.mul_(scale)


class _Masked(torch.autograd.Function):
    """scale * (value & bits), whose derivative is the same function of the gradient."""

    @staticmethod
    def forward(
        ctx: Any, value: Tensor, bits: Tensor, scale: float, buffers: MaskBuffers, grad_is_exclusive: bool
    ) -> Tensor:
        ctx.bits, ctx.scale, ctx.buffers, ctx.grad_is_exclusive = bits, scale, buffers, grad_is_exclusive
        return masked_into(buffers.values, value, bits, scale)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        ctx.buffers.backward_ran = True
        if torch._C._functorch.is_legacy_batchedtensor(grad):  # of torch.autograd.grad(is_grads_batched=True)
            found = select(grad, ctx.bits) * ctx.scale
        elif torch.is_grad_enabled():  # the gradient is differentiated again
            found = masked(grad, ctx.bits, ctx.scale, MaskBuffers())
        elif ctx.grad_is_exclusive:
            found = masked_in_place(grad, ctx.bits, ctx.scale)
        else:
            found = masked_into(ctx.buffers.gradients, grad, ctx.bits, ctx.scale)
        return found, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: None) -> Tensor:
        return masked(tangent, ctx.bits, ctx.scale, MaskBuffers())


class _Selected(torch.autograd.Function):
    """`select` whose derivative compares again: compilers for CPUs are slow with truth values saved for it."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, numbers: Tensor) -> Tensor:
        ctx.save_for_backward(numbers)
        return select(value, numbers)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (numbers,) = ctx.saved_tensors
        return select(grad, numbers), None
