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
        self._own: Tensor | None = None
        self._idle = 0  # users of the memory when it is only here

    def like(self, value: Tensor) -> Tensor:
        """An uninitialized tensor with the shape, strides, type and device of `value`."""
        if value.device.type != "cpu":
            return torch.empty_like(value)
        own = self._own
        if own is None or not _alike(own, value) or _users(own) != self._idle:
            own = self._own = torch.empty_like(value, requires_grad=False)
            self._idle = _users(own)
        return own.detach()

    def holds(self, value: Tensor) -> bool:
        """Whether a tensor lies in this memory."""
        return self._own is not None and value.data_ptr() == self._own.data_ptr() and value.numel() > 0


def _alike(own: Tensor, value: Tensor) -> bool:
    return own.dtype == value.dtype and own.shape == value.shape and own.stride() == value.stride()
