"""Mask the gradients that a step is about to take, without writing into tensors that somebody else holds.

The backward pass of a mask has done so already, but penalties, noise, or a gradient that was made otherwise may have
come on top of it or in its place.
"""

from sys import getrefcount
from typing import NamedTuple

import torch
from torch import Tensor

from mrreg.distributed.sharding import is_sharded, local
from mrreg.errors import invalid_state
from mrreg.masks.masked_tensor import MaskBuffers, as_bits, bits_dtype, masked_into


class MaskedGradient(NamedTuple):
    """A parameter whose gradient is a masked copy for the time of a step."""

    parameter: Tensor
    gradient: Tensor
    copy: Tensor
    version: int

    def give_back(self) -> None:
        """Put the gradient back, unless another one has been set, with what somebody else wrote into the copy."""
        if self.parameter.grad is self.copy and (_version(self.copy) == self.version or self.write_back()):
            self.parameter.grad = self.gradient

    def write_back(self) -> bool:
        """Let the gradient have what the copy has, if it can be written to."""
        try:
            with torch.no_grad():
                self.gradient.copy_(self.copy)
        except RuntimeError:  # one number that is expanded, or made in inference mode
            return False
        return True


def _version(value: Tensor) -> int:
    return 0 if value.is_inference() else value._version


def mask_gradient(parameter: Tensor, bits: Tensor, own: MaskBuffers) -> MaskedGradient | None:
    """Set the slow entries of a gradient to zero: in place where it is autograd's, else in a copy."""
    grad = parameter.grad
    if grad is None:
        return None
    if grad.layout is not torch.strided:
        problem = f"a masked weight {tuple(parameter.shape)} has a sparse gradient"
        raise invalid_state("attach", problem, "Single entries of it cannot be held: make it dense.")
    if _holders(grad, own) == EXCLUSIVE or is_sharded(grad):
        here = as_bits(local(grad))
        here.bitwise_and_(bits if bits.dtype == here.dtype else bits.to(here.dtype))
        return None
    copy = masked_into(own.gradients, grad.detach(), bits.to(bits_dtype(grad)), 1.0)
    parameter.grad = copy
    return MaskedGradient(parameter, grad, copy, _version(copy))


def _holders(grad: Tensor, own: MaskBuffers) -> tuple[int, int, int, bool]:
    """Who holds a gradient, in torch and in Python, and its memory, apart from our own; and whether that is torch's.

    What a user has handed over has a name, or is a neighbour's too, or a part of something, or NumPy's.
    """
    storage = grad.untyped_storage()
    users = torch._C._storage_Use_Count(storage._cdata) - own.has_made(grad)
    return grad._use_count(), getrefcount(grad), users, storage.resizable()  # type: ignore[attr-defined]


def _held_by_its_parameter_alone() -> tuple[int, int, int, bool]:
    """What is counted for a gradient as autograd leaves it."""
    parameter = torch.zeros(1, device="cpu", requires_grad=True)
    parameter.grad = torch.zeros(1, device="cpu")
    grad = parameter.grad
    return _holders(grad, MaskBuffers())


EXCLUSIVE = _held_by_its_parameter_alone()  # not at the first step: a debugger may hold more
