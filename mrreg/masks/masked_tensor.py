"""Memory that is used again, whether a tensor was written to, and tensors read as the integers they consist of."""

from sys import getrefcount
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn


class Unwritten:
    """Tells whether a tensor is still what it was: the same one, with the same memory, and nobody has written to it."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor, self._version, self._address = tensor, _version(tensor), tensor.data_ptr()
        self._memory = tensor.detach()  # whose address nothing else can have while this holds it

    def __call__(self, tensor: Tensor) -> bool:
        """Return True if nobody has written to the tensor since."""
        same = tensor is self._tensor and tensor.data_ptr() == self._address
        return same and self._version is not None and _version(tensor) == self._version


def _version(tensor: Tensor) -> int | None:
    return None if tensor.is_inference() else tensor._version


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
        self._zero_but: tuple[Any, int] | None = None  # entries beside which it is zero, and its version since

    def get(self, shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return an uninitialized contiguous tensor."""
        return self.empty_like(torch.empty((), dtype=dtype, device=device).expand(shape))

    def empty_like(self, value: Tensor) -> Tensor:
        """Return an uninitialized tensor with the shape, strides, type and device of another."""
        self._zero_but = None
        return self._like(value)

    def spread(self, small: Tensor, entries: Any, value: Tensor) -> Tensor:
        """Return a tensor like another with these entries, and zeros elsewhere: written only where they are not yet."""
        whole = self._like(value)
        before, self._zero_but = self._zero_but, None
        ours = type(whole) is Tensor and whole.data_ptr() == self.address and not whole.is_inference()
        if not ours or before is None or before[0] is not entries or before[1] != whole._version:
            whole.zero_()
        entries.put(small, whole)
        if ours:
            self._zero_but = entries, whole._version
        return whole

    def _like(self, value: Tensor) -> Tensor:
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
            self._zero_but = None
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
