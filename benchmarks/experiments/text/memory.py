"""The memory that training takes beyond the network's weights."""

from collections.abc import Iterator
from itertools import islice, repeat

import torch
from torch import Tensor
from torch.optim import Optimizer

from benchmarks.core.training import Batch, Loop

MIB = 2**20


def most_mib(loop: Loop, steps: int) -> float:
    """Return the most MiB that training holds beyond the network's weights, over some steps on the longest batch.

    On CPU, of each step: what autograd saves, plus gradients, plus the optimizer's tensors. On CUDA, what torch has
    allocated at the peak, less what was there before but for the optimizer's tensors.
    """
    batch = max(islice(loop.batches, steps), key=lambda each: each[0].numel())
    return max(_bytes_of_step(loop, batch) for _ in range(steps)) / MIB


def _bytes_of_step(loop: Loop, batch: Batch) -> int:
    device = batch[0].device
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        held = _optimizer_bytes(loop)
        loop.batches = repeat(batch)
        loop.step()
        return torch.cuda.max_memory_allocated(device) - before + held
    *inputs, y = batch
    weights = {parameter.untyped_storage().data_ptr() for parameter in loop.model.parameters()}
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    loop.model.train()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = loop.loss(loop.model(*inputs), y)
    loss.backward()  # type: ignore[no-untyped-call]
    gradients = sum(p.grad.nbytes for p in loop.model.parameters() if p.grad is not None)
    loop.optimizer.step()
    held = _optimizer_bytes(loop)
    loop.optimizer.zero_grad()
    if loop.scheduler is not None:
        loop.scheduler.step()
    return sum(saved.values()) + gradients + held


def _optimizer_bytes(loop: Loop) -> int:
    """Return the bytes of the state, and of copies of the weights that an optimizer holds."""
    base: Optimizer = getattr(loop.optimizer, "base_optimizer", loop.optimizer)
    known = set(loop.model.parameters())
    copies = [p for group in base.param_groups for p in group["params"] if p not in known]
    return sum(tensor.nbytes for tensor in [*_tensors(base), *copies])


def _tensors(optimizer: Optimizer) -> Iterator[Tensor]:
    for state in optimizer.state.values():
        yield from (value for value in state.values() if isinstance(value, Tensor))
