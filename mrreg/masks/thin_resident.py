"""Kept entries that take the place of parameters for a whole cycle, so that nothing is gathered while nobody looks."""

import weakref
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from mrreg.distributed.sharding import is_sharded
from mrreg.masks.thin_mask import ThinMask
from mrreg.masks.thin_step import ThinLeaf, ThinStep
from mrreg.masks.thin_tensor import ThinTensor


class ResidentLeaves:
    """Leaves that a model and its optimizer have instead of parameters, from the first masked forward of a cycle on.

    Whoever else reads or lists the parameters of the model finds them whole, with gradient and state: everything is
    written back first, and stays so until the next cycle.
    """

    def __init__(self, mask: ThinMask, optimizer: Optimizer, step: ThinStep) -> None:
        self._mask, self._optimizer, self._step = mask, weakref.ref(optimizer), step
        self._cycle: object = None  # the draw for which leaves were made
        self._leaves: dict[ThinTensor, ThinLeaf] = {}

    def __len__(self) -> int:
        return len(self._leaves)

    def __contains__(self, tensor: object) -> bool:
        return tensor in self._leaves

    def read(self, tensor: ThinTensor, value: Tensor) -> Tensor:
        """Return what a masked forward reads in the place of a parameter."""
        leaf = self._leaves[tensor].leaf
        return tensor.widened(leaf if tensor.scale == 1 else leaf * tensor.scale, value)

    @torch.no_grad()
    def enter(self, model: nn.Module) -> None:
        """Put kept entries into the places of parameters, once in a cycle."""
        optimizer = self._optimizer()
        if optimizer is None or self._cycle == self._mask._drawn or _has_company():
            return
        self._cycle = self._mask._drawn
        places = {
            id(p): (group["params"], i)
            for group in optimizer.param_groups
            for i, p in enumerate(group["params"])
            if "period" not in group  # a `Multirate` has lists of its own
        }
        for tensor in self._mask.tensors.values():
            p = tensor.of(model)
            if tensor.cuts and not tensor.off and id(p) in places and _is_free(p):
                leaf = self._leaves[tensor] = ThinLeaf(p)
                leaf.enter(optimizer, *places[id(p)], tensor)
                small: Any = leaf.leaf
                small.register_post_accumulate_grad_hook(self._check_gradient(leaf))

    def leave(self) -> None:
        """Write everything back; in the middle of a step the optimizer keeps the leaves until it ends."""
        if not self._leaves:
            return
        with self._mask.lock, torch.no_grad():
            leaves, self._leaves = list(self._leaves.values()), {}
            optimizer = self._optimizer()
            for leaf in leaves:
                leaf.hide(optimizer)
                leaf.write_back(optimizer)
            if self._step.running and optimizer is not None:
                self._step.take_over(optimizer, leaves)
            else:
                for leaf in leaves:
                    leaf.give_gradient()
            self._mask.release_tables()

    def _check_gradient(self, leaf: ThinLeaf) -> Any:
        """Return a hook for a backward pass of a forward that ran before somebody looked."""

        def give(_: Tensor) -> None:
            if all(leaf is not each for each in self._leaves.values()):
                leaf.give_gradient()

        return give


def _is_free(p: Tensor) -> bool:
    """Tell if a parameter is trained, has no gradient yet, and nobody waits for one."""
    hooked = p._backward_hooks or getattr(p, "_post_accumulate_grad_hooks", None)
    return p.requires_grad and p.grad is None and not hooked and not is_sharded(p)


def _has_company() -> bool:
    """Tell if DistributedDataParallel may wait for the gradients of parameters."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()
