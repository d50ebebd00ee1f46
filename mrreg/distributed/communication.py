"""A communication hook for DistributedDataParallel that sends the gradients of due parameters only."""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.futures import Future


def reduce_due(group: dist.ProcessGroup | None, bucket: GradBucket) -> Future[Tensor]:
    """Average gradients over the ranks, but only those of parameters that are due: a hook for DistributedDataParallel.

    A fast step then sends the fast part's gradients alone, so that a cycle of k steps sends k * |theta_F| + |theta_S|
    entries instead of k * |theta|. The gradients are those of plain DistributedDataParallel: bit for bit on two ranks,
    and to rounding on more.

    `group` is the process group (None: the default one). The result is a future of the bucket's memory.

    Example:
        >>> from mrreg.distributed import reduce_due
        >>> def parallel(model):
        ...     wrapper = torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
        ...     wrapper.register_comm_hook(None, reduce_due)
        ...     return wrapper

    Note:
        Which parameters are due is read from `requires_grad`, which `Multirate` switches alike on all ranks. Not for
        `DistributedDataParallel.join`, whose idle ranks no longer know what is due.
    """
    group = dist.group.WORLD if group is None else group
    memory = bucket.buffer()
    due = [g for p, g in zip(bucket.parameters(), bucket.gradients(), strict=True) if p.requires_grad]
    if not due:
        ready: Future[Tensor] = Future()
        ready.set_result(memory)
        return ready
    sent = torch.cat([g.flatten() for g in due]).div_(dist.get_world_size(group))

    def arrived(_: Future[Tensor]) -> Tensor:
        for g, part in zip(due, torch.split(sent, [g.numel() for g in due]), strict=True):
            g.copy_(part.view(g.shape))
        return memory

    sending: Future[Tensor] = dist.all_reduce(sent, group=group, async_op=True).get_future()
    return sending.then(arrived)
