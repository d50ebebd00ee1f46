"""Memory that is used again from step to step, where nobody else holds it any more.

On a CPU, fresh memory for a large weight is first touched page by page, which takes longer than the bitwise operation
that fills it. Allocators of other devices keep their memory, so they need none of this.
"""

import torch
from torch import Tensor


def _users(value: Tensor) -> int:
    """How many tensors, in Python, in graphs or as gradients, share this memory."""
    return torch._C._storage_Use_Count(value.untyped_storage()._cdata)


class Workspace:
    """Hands out one tensor like those it is asked for; the same memory again once everybody else has let it go."""

    def __init__(self) -> None:
        self._own = torch.empty(0)
        self._asked: object = None  # what the memory was made for
        self._idle = 0  # its users when it is only here

    def get(self, shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
        """An uninitialized contiguous tensor."""
        return self.like(torch.empty((), dtype=dtype, device=device).expand(shape))

    def like(self, value: Tensor) -> Tensor:
        """An uninitialized tensor with the shape, strides, type and device of another."""
        if value.device.type != "cpu":
            return torch.empty_like(value)
        asked = value.shape, value.stride(), value.dtype
        if asked != self._asked or _users(self._own) != self._idle:
            self._own, self._asked = torch.empty_like(value, requires_grad=False), asked
            self._idle = _users(self._own)
        return self._own.detach()
