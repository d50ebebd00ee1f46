"""The entries of a tensor that belong to kept units: gathered into a smaller tensor, and written back into place."""

from collections.abc import Mapping
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from mrreg.distributed.sharding import is_sharded, window
from mrreg.masks.masked_tensor import ReusableBuffer, as_bits, bits_dtype


class KeptEntries:
    """Positions of the kept entries in tensors of one shape and memory layout.

    A tensor is read as a matrix in the order of its memory. A row of the matrix is all that follows the last dimension
    of which something is dropped, so that rows are kept or dropped as a whole, in one pass for all dimensions.
    Where a row is one entry, the matrix is a vector: torch indexes those 5 times as fast as matrices of one column.

    Args:
        like: A tensor of that shape and layout.
        kept: Indices of what is kept along some dimensions, ascending; of the others everything is kept.
        device: Device of the tensors.
    """

    spends = False  # `put` leaves what it is given as it is

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
        """Return the kept entries; in the memory of `out`, where that is what an earlier call returned."""
        matrix = self._ordered(whole).reshape(self._matrix)
        if out is not None:
            torch.index_select(matrix, 0, self.rows, out=self._rows_of(out))
            return out
        small = matrix.index_select(0, self.rows).view(self._kept_sizes)
        return small if self._in_order else small.permute(self._inverse)

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
        """Return a tensor with these entries and zeros elsewhere, by operations that graphs can contain."""
        matrix = small.new_zeros(self._matrix).index_copy(0, self.rows, self._rows_of(small))
        return matrix.view(self._sizes).permute(self._inverse)

    def _ordered(self, tensor: Tensor) -> Tensor:
        return tensor if self._in_order else tensor.permute(self._order)  # a call takes as long as a small gather

    def _rows_of(self, small: Tensor) -> Tensor:
        return self._ordered(small).reshape(self._rows_shape)


class PresentEntries:
    """Entries that stay in their places: what is taken has the shape of the whole, with zeros at absent entries.

    Args:
        bits: Integers as wide as an entry that broadcast over the tensor: -1 (all bits set) where present, else 0. On
            CPUs a select by truth values takes twenty times as long.
        shape: Of the tensor.
    """

    spends = True

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

    spread = take

    def _as_wide(self, value: Tensor) -> Tensor:
        """Return bits as wide as the entries of a tensor: state may be kept in another precision."""
        return self.bits.to(bits_dtype(value))


class KeptUnits:
    """The units that a cycle keeps along dimensions of one parameter or buffer, and the memory of its gradient.

    Args:
        scale: Factor of the kept entries in masked forwards.
        gradients: Memory of the gradient, if it is not to be its own.
    """

    def __init__(self, scale: float = 1.0, gradients: ReusableBuffer | None = None) -> None:
        self.scale = scale
        self.gradients = ReusableBuffer() if gradients is None else gradients
        self._kept: Mapping[int, Tensor] = {}
        self._traced: KeptEntries | None = None
        self._entries: dict[object, KeptEntries] = {}  # by shape and layout: a sharded parameter has two

    def keep(self, kept: Mapping[int, Tensor], value: Tensor) -> None:
        """Set the kept positions from now on: ascending indices along each dimension of which something is dropped."""
        self._kept, self._entries = kept, {}
        whole = torch.empty(value.shape, device="meta") if is_sharded(value) else value
        self._traced = KeptEntries(whole, kept, value.device)  # graphs have the indices as inputs

    def entries(self, value: Tensor) -> KeptEntries:
        """Return the positions of kept entries; of a sharded tensor, those in the part that this rank has."""
        if torch.compiler.is_compiling():
            return self._traced or KeptEntries(value, self._kept, value.device)
        sharded = is_sharded(value)
        size, start = window(value) if sharded else (value.shape, (0,) * value.dim())
        here: Tensor = value.to_local() if sharded else value  # type: ignore[attr-defined]
        key = here.shape, here.stride(), here.device, start
        found = self._entries.get(key)
        if found is None:
            kept = {}
            for dim, indices in self._kept.items():
                inside = (indices >= start[dim]) & (indices < start[dim] + size[dim])
                kept[dim] = indices[inside] - start[dim]
            found = self._entries[key] = KeptEntries(here, kept, here.device)
        return found

    def kept_shape(self, value: Tensor) -> torch.Size:
        """Return the shape of the kept entries, on all ranks together."""
        return torch.Size(
            self._kept[dim].numel() if dim in self._kept else size for dim, size in enumerate(value.shape)
        )

    def gather(self, value: Tensor) -> Tensor:
        """Return the tensor that takes the place of a parameter or buffer in a masked forward."""
        return gather(value, self.entries(value), self.scale, self.gradients)


def gather(value: Tensor, entries: KeptEntries, scale: float, gradients: ReusableBuffer) -> Tensor:
    """Return `scale` times the kept entries of a parameter, whose other entries get a gradient of exactly zero.

    Args:
        value: The parameter.
        entries: The entries of it that are kept.
        scale: Factor of the kept entries.
        gradients: Memory for the gradient of the parameter: to fill fresh pages takes longer than all else here.
    """
    if torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        small = entries.take(value)
        return small if scale == 1 else small * scale
    return _Gather.apply(value, entries, scale, gradients)  # type: ignore[no-any-return]


class _Gather(torch.autograd.Function):
    """Kept entries, whose gradient is spread over a tensor of full size."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, entries: KeptEntries, scale: float, gradients: ReusableBuffer) -> Tensor:
        ctx.value, ctx.entries, ctx.scale, ctx.gradients = value, entries, scale, gradients
        small = entries.take(value)
        return small if scale == 1 else small.mul_(scale)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        entries: KeptEntries = ctx.entries
        if ctx.scale != 1:
            grad = grad * ctx.scale
        if _is_traced(grad):
            return entries.spread(grad), None, None, None
        ctx.gradients.used = True
        return ctx.gradients.spread(grad, entries, ctx.value), None, None, None


def _is_traced(grad: Tensor) -> bool:
    """Tell if the backward pass is being compiled, differentiated or batched."""
    if torch.compiler.is_compiling() or torch.is_grad_enabled():
        return True
    return torch._C._functorch.is_legacy_batchedtensor(grad)  # of torch.autograd.grad(is_grads_batched=True)
