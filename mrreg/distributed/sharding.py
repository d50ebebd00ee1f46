"""Parameters that `fully_shard` has cut: what lies on this rank, and where it lies in the whole.

Everything here is element-wise, so every rank works on what it holds, without communication.
"""

from typing import Any

import torch
from torch import Tensor, nn

ORDINARY = (Tensor, nn.Parameter)  # most tensors, so that most questions are cheap


def is_sharded(value: Tensor) -> bool:
    """Whether a tensor is spread over ranks; torch need not be built with them."""
    return type(value) not in ORDINARY and hasattr(value, "placements")


def local(value: Tensor) -> Tensor:
    """The memory that this rank holds of a tensor."""
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
    """The same of several, for torch's foreach functions, many of which know no distributed tensors."""
    return [local(v) for v in values] if any(map(is_sharded, values)) else values


def any_nonzero(value: Tensor) -> bool:
    """Whether an entry anywhere is not zero: all ranks agree."""
    found = (value.coalesce().values() if value.is_sparse else value).any()
    return bool(found.full_tensor() if is_sharded(found) else found)  # type: ignore[attr-defined]


def window(value: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape of the local part, and where it begins in the whole."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    return compute_local_shape_and_global_offset(value.shape, value.device_mesh, value.placements)  # type: ignore[attr-defined]


def cut(whole: Tensor, value: Tensor) -> Tensor:
    """The part of a tensor that broadcasts over `value` which falls to this rank."""
    if not is_sharded(value):
        return whole
    for dim, (size, start) in enumerate(zip(*window(value), strict=True)):
        if whole.shape[dim] == value.shape[dim] != size:
            whole = whole.narrow(dim, min(start, whole.shape[dim]), size)
    return whole
