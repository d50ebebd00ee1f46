"""Mask the gradients that a step is about to take, without writing into tensors that somebody else holds.

The backward pass of a mask has done so already, but penalties, noise, or a gradient that was made otherwise may have
come on top of it or in its place.
"""

import functools
from sys import getrefcount
from typing import NamedTuple

import torch
from torch import Tensor

from mrreg.errors import wrong_moment
from mrreg.shards import is_sharded, local
from mrreg.substitute import Substitute, as_bits, bits_dtype, fill


class Lent(NamedTuple):
    """A parameter whose gradient is a masked copy for the time of a step."""

    parameter: Tensor
    gradient: Tensor
    copy: Tensor
    version: int

    def give_back(self) -> None:
        """Put the gradient back, unless somebody has set or written another one meanwhile."""
        if self.parameter.grad is self.copy and _version(self.copy) == self.version:
            self.parameter.grad = self.gradient


def _version(value: Tensor) -> int:
    return 0 if value.is_inference() else value._version


def mask_gradient(parameter: Tensor, bits: Tensor, own: Substitute) -> Lent | None:
    """Set the slow entries of a gradient to zero: in place where it is autograd's, else in a copy."""
    grad = parameter.grad
    if grad is None:
        return None
    if grad.layout is not torch.strided:
        problem = f"a masked weight {tuple(parameter.shape)} has a sparse gradient"
        raise wrong_moment("attach", problem, "Single entries of it cannot be held: make it dense.")
    if _holders(grad, own) == _nobody() or is_sharded(grad):
        here = as_bits(local(grad))
        here.bitwise_and_(bits if bits.dtype == here.dtype else bits.to(here.dtype))
        return None
    copy = fill(own.gradients, grad.detach(), bits.to(bits_dtype(grad)), 1.0)
    parameter.grad = copy
    return Lent(parameter, grad, copy, _version(copy))


def _holders(grad: Tensor, own: Substitute) -> tuple[int, int, int, bool]:
    """Who holds a gradient, in torch and in Python, and its memory, apart from our own; and whether that is torch's.

    What a user has handed over has a name, or is a neighbour's too, or a part of something, or NumPy's.
    """
    storage = grad.untyped_storage()
    users = torch._C._storage_Use_Count(storage._cdata) - own.has_made(grad)
    return grad._use_count(), getrefcount(grad), users, storage.resizable()  # type: ignore[attr-defined]


@functools.cache
def _nobody() -> tuple[int, int, int, bool]:
    """What is counted where nobody but the parameter holds its gradient, as autograd has made it."""
    parameter = torch.zeros(1, device="cpu", requires_grad=True)
    parameter.grad = torch.zeros(1, device="cpu")
    grad = parameter.grad
    return _holders(grad, Substitute())
