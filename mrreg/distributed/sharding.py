"""Parameters that `fully_shard` has cut: the part on this rank, and its place in the whole."""

from typing import Any

import torch
from torch import Tensor, nn


def is_sharded(value: Tensor) -> bool:
    """Return True for a tensor that is spread over ranks; torch need not be built with them."""
    return type(value) not in (Tensor, nn.Parameter) and hasattr(value, "placements")


def local(value: Tensor) -> Tensor:
    """Return the part of a tensor that this rank holds, in the same memory."""
    if not is_sharded(value):
        return value.detach()
    with torch.no_grad():
        return value.to_local().detach()  # type: ignore[attr-defined, no-any-return]


def as_sharded(here: Tensor, like: Tensor, shape: torch.Size) -> Tensor:
    """Return this rank's part of a tensor of some shape as one that is spread over ranks as another is."""
    if not is_sharded(like):
        return here
    from torch.distributed.tensor import DTensor

    stride = torch.empty(shape, device="meta").stride()
    where: tuple[Any, Any] = like.device_mesh, like.placements  # type: ignore[attr-defined]
    return DTensor.from_local(here, *where, run_check=False, shape=shape, stride=stride)


def local_all(values: list[Tensor]) -> list[Tensor]:
    """Return the local parts of several, for torch's foreach functions: many know no distributed tensors."""
    return [local(v) for v in values] if any(map(is_sharded, values)) else values


def any_nonzero(value: Tensor) -> bool:
    """Return True if an entry on any rank is not zero."""
    found = (value.coalesce().values() if value.is_sparse else value).any()
    return bool(found.full_tensor() if is_sharded(found) else found)  # type: ignore[attr-defined]


def window(value: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shape of the local part and the position in the whole where it begins."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    return compute_local_shape_and_global_offset(value.shape, value.device_mesh, value.placements)  # type: ignore[attr-defined]


def cut(whole: Tensor, value: Tensor) -> Tensor:
    """Return this rank's part of a whole tensor that broadcasts over `value`."""
    if not is_sharded(value):
        return whole
    for dim, (size, start) in enumerate(zip(*window(value), strict=True)):
        if whole.shape[dim] == value.shape[dim] != size:
            whole = whole.narrow(dim, min(start, whole.shape[dim]), size)
    return whole
