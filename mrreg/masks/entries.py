"""The entries of a tensor that are present: taken out of it and put back; and memory that is used again."""

from collections.abc import Mapping
from math import prod
from sys import getrefcount
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import is_legacy_batchedtensor
from torch.autograd import forward_ad


class Unwritten:
    """Tells whether a tensor is still what it was: the same one, with the same memory, and nobody has written to it."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor, self._version, self._address = tensor, version_of(tensor), tensor.data_ptr()
        self._memory = tensor.detach()  # whose address nothing else can have while this holds it

    def __call__(self, tensor: Tensor) -> bool:  # noqa: D102
        same = tensor is self._tensor and tensor.data_ptr() == self._address
        return same and self._version is not None and version_of(tensor) == self._version


def version_of(tensor: Tensor) -> int | None:
    """Return the number of writes to a tensor; None if torch does not count them."""
    return None if tensor.is_inference() else tensor._version


class ReusableBuffer:
    """Memory for one tensor, handed out again once nobody else uses it."""

    _storage: torch.UntypedStorage  # of the memory, once there is any

    def __init__(self) -> None:
        self._tensor = torch.empty(0, device="cpu")
        self._asked: object = None  # the request that the memory was made for
        self._thread = 0  # that may use it again: another one could take it between the look at its users and its use
        self.address = 0  # changes where it is resized, or moved to memory that processes share
        self._idle = 0, 0  # its users when nobody else has it
        self._zero_but: tuple[Any, int] | None = None  # entries beside which it is zero, and its version since

    def empty_like(self, value: Tensor) -> Tensor:
        """Return an uninitialized tensor with the shape, strides, type and device of another."""
        self._zero_but = None
        return self._like(value)

    def spread(self, small: Tensor, entries: Any, value: Tensor) -> Tensor:
        """Return a tensor like another with these entries, and zeros elsewhere: written only where they are not yet."""
        whole = self._like(value)
        ours = type(whole) is Tensor and whole.data_ptr() == self.address and not whole.is_inference()
        if not ours or self._zero_but != (entries, whole._version):
            whole.zero_()
        entries.put(small, whole)
        self._zero_but = (entries, whole._version) if ours else None
        return whole

    def _like(self, value: Tensor) -> Tensor:
        plain = type(value) in (Tensor, nn.Parameter)  # a sharded one looks like the whole
        if not plain or value.device.type != "cpu" or (self._thread and self._thread != get_ident()):
            return torch.empty_like(value, requires_grad=False)
        asked = value.shape, value.stride(), value.dtype
        moved = self._tensor.data_ptr() != self.address
        if asked != self._asked or moved or self._users() != self._idle:
            fresh = torch.empty_like(value, requires_grad=False)
            if type(fresh) is not Tensor:  # one without data, of a dry run, is of no use later
                return fresh
            self._tensor, self._asked, self._thread = fresh, asked, get_ident()
            self._storage, self.address = fresh.untyped_storage(), fresh.data_ptr()
            self._zero_but = None
            self._idle = self._users()
        return self._tensor.detach()

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


class KeptEntries:
    """Positions of the kept entries in tensors of one shape and memory layout.

    A tensor is read as a matrix in the order of its memory. A row of the matrix is all that follows the last dimension
    of which something is dropped, so that rows are kept or dropped as a whole, in one pass for all dimensions.
    Where a row is one entry, the matrix is a vector: torch indexes those 5 times as fast as matrices of one column.
    `kept` has ascending indices of what is kept along some dimensions; of the others everything is.
    """

    in_place = False

    def __init__(self, like: Tensor, kept: Mapping[int, Tensor], device: torch.device) -> None:
        strides = like.stride()
        order = sorted(range(like.dim()), key=lambda dim: -strides[dim])
        sizes = [like.shape[dim] for dim in order]
        leading = 1 + max((order.index(dim) for dim in kept), default=-1)
        self.rows = torch.zeros(1, dtype=torch.int64, device=device)
        for dim, size in zip(order[:leading], sizes, strict=False):
            along = kept[dim].to(device) if dim in kept else torch.arange(size, device=device)
            self.rows = (self.rows[:, None] * size + along).flatten()
        self._order, self._inverse = order, [order.index(dim) for dim in range(like.dim())]
        self._sizes = sizes
        self._kept_sizes = [kept[dim].numel() if dim in kept else like.shape[dim] for dim in order]
        row = sizes[leading:]
        self._matrix = (prod(sizes[:leading]), *([prod(row)] if prod(row) != 1 else []))
        self._rows_shape = self.rows.shape + self._matrix[1:]
        self._in_order = order == list(range(like.dim()))
        self.shape = torch.Size(self._kept_sizes[place] for place in self._inverse)

    def take(self, whole: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the kept entries; in the memory of `out`, if that is laid out alike."""
        matrix = self._ordered(whole).reshape(self._matrix)
        if out is not None and self._ordered(out).is_contiguous():
            torch.index_select(matrix, 0, self.rows, out=self._rows_of(out))
            return out
        small = matrix.index_select(0, self.rows).view(self._kept_sizes)
        return small if self._in_order else small.permute(self._inverse)

    read = take  # by operations that graphs can contain

    def put(self, small: Tensor, whole: Tensor) -> None:
        """Write kept entries into a tensor, whose others stay as they are."""
        ordered, rows = self._ordered(whole), self._rows_of(small)
        matrix = ordered.reshape(self._matrix)
        if rows.dim() == 1:  # a third of the time of index_copy_, which is faster for longer rows (CPU)
            matrix.scatter_(0, self.rows, rows)
        else:
            matrix.index_copy_(0, self.rows, rows)
        if not ordered.is_contiguous():  # of another layout: the matrix is a copy
            ordered.copy_(matrix.view(self._sizes))

    def spread(self, small: Tensor) -> Tensor:
        """Return a tensor with these entries and zeros elsewhere, as graphs can contain it."""
        matrix = small.new_zeros(self._matrix).index_copy(0, self.rows, self._rows_of(small))
        return matrix.view(self._sizes).permute(self._inverse)

    def _ordered(self, tensor: Tensor) -> Tensor:
        return tensor if self._in_order else tensor.permute(self._order)  # a call takes as long as a small gather

    def _rows_of(self, small: Tensor) -> Tensor:
        return self._ordered(small).reshape(self._rows_shape)


class PresentEntries:
    """Entries that stay in their places: what is taken has the shape of the whole, with zeros at absent entries.

    `bits` are integers as wide as an entry that broadcast over the tensor: -1 (all bits set) where present, else 0. On
    CPUs a select by truth values takes twenty times as long.
    """

    in_place = True

    def __init__(self, bits: Tensor, shape: torch.Size) -> None:
        self.bits, self.shape = bits, shape

    def take(self, whole: Tensor, out: Tensor | None = None) -> Tensor:
        """Return a copy with zeros at absent entries; in the memory of `out`, if there is."""
        out = torch.empty_like(whole) if out is None else out
        torch.bitwise_and(as_bits(whole), self._as_wide(whole), out=as_bits(out))
        return out

    def put(self, small: Tensor, whole: Tensor) -> None:
        """Write present entries into a tensor, whose others stay as they are; `small` is used up."""
        here, change = as_bits(whole), as_bits(small)
        torch.sub(here, change, out=change)
        here.addcmul_(change, self._as_wide(whole))  # bits are -1 and 0, and whole numbers wrap around

    def read(self, whole: Tensor) -> Tensor:
        """Return the same by operations that graphs can contain."""
        return torch.where(self.bits != 0, whole, 0)

    spread = read

    def _as_wide(self, value: Tensor) -> Tensor:
        """Return bits as wide as the entries of a tensor: state may be kept in another precision."""
        return self.bits.to(bits_dtype(value))


Entries = KeptEntries | PresentEntries


def gather(value: Tensor, entries: Entries, scale: float | Tensor, gradients: ReusableBuffer) -> Tensor:
    """Return `scale` times the present entries of a parameter, whose other entries get a gradient of exactly zero.

    The gradient of the parameter is made in `gradients`: to fill fresh pages takes longer than all else here. What is
    absent is not read, be it NaN or inf.
    """
    transformed = torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0
    factor = scale if isinstance(scale, Tensor) or scale != 1 else None
    if transformed or (entries.in_place and torch.compiler.is_compiling()):
        small = entries.read(value)
        return small if factor is None else small * factor
    return _Gather.apply(value, entries, factor, gradients)  # type: ignore[no-any-return]


class _Gather(torch.autograd.Function):
    """Present entries, whose gradient is spread over a tensor of full size."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, entries: Entries, factor: Any, gradients: ReusableBuffer) -> Tensor:
        ctx.entries, ctx.factor, ctx.gradients = entries, factor, gradients
        ctx.save_for_backward(value)  # torch refuses a backward pass that finds it changed
        small = entries.take(value)
        return small if factor is None else small.mul_(factor)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        entries: Entries = ctx.entries
        (value,) = ctx.saved_tensors
        if ctx.factor is not None:
            grad = grad * ctx.factor
        # batched by torch.autograd.grad(is_grads_batched=True)
        if torch.compiler.is_compiling() or torch.is_grad_enabled() or is_legacy_batchedtensor(grad):
            return entries.spread(grad), None, None, None
        whole = entries.take(grad) if entries.in_place else ctx.gradients.spread(grad, entries, value)
        return whole, None, None, None
