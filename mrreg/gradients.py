"""Mask the gradients that a step is about to take, without writing into tensors that somebody else holds.

The backward pass of a mask has done so already, but penalties, noise, or a gradient that was made otherwise may have
come on top of it or in its place.
"""

import functools
from sys import getrefcount
from typing import Any, NamedTuple

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
    if parameter.grad is None:
        return None
    if parameter.grad.layout is not torch.strided:
        problem = f"a masked weight {tuple(parameter.shape)} has a sparse gradient"
        raise wrong_moment("attach", problem, "Single entries of it cannot be held: make it dense.")
    in_place = is_sharded(parameter.grad) or _is_nobody_elses(parameter, own)  # before it has a name here
    grad = parameter.grad
    if in_place:
        here = as_bits(local(grad))
        here.bitwise_and_(bits.to(here.dtype))
        return None
    copy = fill(own.gradients, grad.detach(), bits.to(bits_dtype(grad)), 1.0)
    parameter.grad = copy
    return Lent(parameter, grad, copy, _version(copy))


def _is_nobody_elses(parameter: Any, own: Substitute) -> bool:
    """Whether a parameter alone holds its gradient, and the gradient, or a workspace that made it, alone the memory.

    So it is with those that autograd made. One that a user handed over has a name, is a neighbour's too, or NumPy's.
    """
    expected = _alone()
    return _held(parameter) == expected[0] and (own.has_lent(parameter.grad) or _memory(parameter) == expected[1])


@functools.cache
def _alone() -> tuple[object, object]:
    """What is counted for a gradient that only its parameter holds."""
    leaf = torch.zeros(1, device="cpu", requires_grad=True)
    leaf.grad = torch.zeros(1, device="cpu")
    return _held(leaf), _memory(leaf)


def _held(parameter: Any) -> tuple[int, int]:
    """How often a gradient is held: in torch and in Python."""
    grad = parameter.grad
    return grad._use_count(), getrefcount(grad)


def _memory(parameter: Any) -> tuple[int, int, bool]:
    """How often a gradient's memory is held, by tensors and in Python, and whether it is torch's own."""
    storage = parameter.grad.untyped_storage()
    return torch._C._storage_Use_Count(storage._cdata), getrefcount(storage), storage.resizable()
