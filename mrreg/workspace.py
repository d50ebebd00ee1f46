"""Memory that is used again from step to step, where nobody else holds it any more.

On a CPU, fresh memory for a large weight is first touched page by page, which takes longer than the bitwise operation
that fills it. Allocators of other devices keep their memory, so they need none of this.
"""

from sys import getrefcount
from threading import get_ident

import torch
from torch import Tensor


class Workspace:
    """Hands out one tensor like those it is asked for; the same memory again once everybody else has let it go."""

    _storage: torch.UntypedStorage  # of the memory, once there is any; pickles and copies come before

    def __init__(self) -> None:
        self._own = torch.empty(0)
        self._asked: object = None  # what the memory was made for
        self._thread = 0  # whose it is: between a look at its users and its use, another thread may have looked too
        self.address = 0  # another one once it is resized, or moved to where other processes see it
        self._idle = 0, 0  # its users when it is only here

    def get(self, shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
        """An uninitialized contiguous tensor."""
        return self.like(torch.empty((), dtype=dtype, device=device).expand(shape))

    def like(self, value: Tensor) -> Tensor:
        """An uninitialized tensor with the shape, strides, type and device of another."""
        if value.device.type != "cpu" or (self._thread and self._thread != get_ident()):
            return torch.empty_like(value, requires_grad=False)
        asked = value.shape, value.stride(), value.dtype
        if asked != self._asked or not self._is_free():
            fresh = torch.empty_like(value, requires_grad=False)
            if type(fresh) is not Tensor:  # one without data, of a dry run, is of no use later
                return fresh
            self._own, self._asked, self._thread = fresh, asked, get_ident()
            self._storage, self.address = fresh.untyped_storage(), fresh.data_ptr()
            self._idle = self._users()
        return self._own.detach()

    def _is_free(self) -> bool:
        return self._own.data_ptr() == self.address and self._users() == self._idle

    def _users(self) -> tuple[int, int]:
        """How many tensors, in Python, in graphs or as gradients, share this memory, and how many hold its storage."""
        return torch._C._storage_Use_Count(self._storage._cdata), getrefcount(self._storage)
