"""Kept entries that take the place of parameters for a whole cycle, so that nothing is gathered while nobody looks."""

import warnings
import weakref
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from mrreg.distributed.sharding import is_sharded
from mrreg.errors import NoEffectWarning
from mrreg.masks.kept_entries import KeptEntries
from mrreg.masks.thin_mask import ThinMask
from mrreg.masks.thin_step import ThinLeaf, ThinStep, give_gradient
from mrreg.masks.thin_tensor import WHERE, ThinTensor

USELESS = 3  # cycles, after which a warning comes


class ResidentLeaves:
    """Leaves that a model and its optimizer have instead of parameters, from the first masked forward of a cycle on.

    Whoever else reads or lists the parameters of the model finds them whole, with gradient and state: everything is
    written back first, and stays so until the next cycle.
    """

    def __init__(self, mask: ThinMask, optimizer: Optimizer, step: ThinStep) -> None:
        self._mask, self._optimizer, self._step = mask, weakref.ref(optimizer), step
        self._cycle: object = None  # the draw for which leaves were made
        self._forwards = 0  # of this cycle that read leaves
        self._useless = 0  # cycles one after another in which a single forward did
        self._leaves: dict[ThinTensor, ThinLeaf] = {}
        self._receivers: list[Receiver] = []  # one for each leaf
        self._handles: list[Any] = []  # of hooks on parameters
        self.moved = False  # in a step since leaves were made

    def __len__(self) -> int:
        return len(self._leaves)

    def __contains__(self, tensor: object) -> bool:
        return tensor in self._leaves

    def begin_step(self, group_of: dict[int, dict[str, Any]]) -> None:
        """Add the groups of the parameters that leaves stand for, by id; a joint step moves whole parameters."""
        for leaf in self._leaves.values():
            if id(leaf.leaf) in group_of:
                group_of[id(leaf.parameter)] = group_of[id(leaf.leaf)]
        if not self._mask._masking:
            self.leave()

    def read(self, tensor: ThinTensor, value: Tensor) -> Tensor:
        """Return what a masked forward reads in the place of a parameter."""
        leaf = self._leaves[tensor].leaf
        return tensor.widened(leaf if tensor.scale == 1 else leaf * tensor.scale, value)

    @torch.inference_mode(False)
    @torch.no_grad()
    def enter(self, model: nn.Module) -> None:
        """Put kept entries into the places of parameters, once in a cycle."""
        optimizer = self._optimizer()
        self._forwards += bool(self._leaves)
        if optimizer is None or self._cycle == self._mask._drawn or _has_company():
            return
        self._cycle, self._forwards, self.moved = self._mask._drawn, 1, False
        if self._useless == USELESS:
            problem = "resident=True has no effect: something reads the parameters of the model at every step"
            remedy = "Call optimizer.zero_grad(), and clip the gradients of optimizer.param_groups."
            warnings.warn(f"{WHERE}: {problem}. {remedy}", NoEffectWarning, stacklevel=9)
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
                self._receivers.append(receiver := Receiver(p, tensor.entries(p)))
                small.register_post_accumulate_grad_hook(receiver)
                whole: Any = p  # which the loss may have read before this forward
                self._handles.append(whole.register_post_accumulate_grad_hook(lambda _: self.leave()))

    def leave(self) -> None:
        """Write everything back; in the middle of a step the optimizer keeps the leaves until it ends."""
        if not self._leaves:
            return
        self._useless = self._useless + 1 if self._forwards == 1 and self._mask.k > 2 else 0
        with self._mask.lock, torch.inference_mode(False), torch.no_grad():
            leaves, self._leaves = list(self._leaves.values()), {}
            while self._handles:
                self._handles.pop().remove()
            while self._receivers:
                self._receivers.pop().takes = True
            optimizer = self._optimizer()
            for leaf in leaves:
                leaf.hide(optimizer)
                if self.moved or self._step.prepared:  # else graphs may need what the parameter is already
                    leaf.write_back(optimizer)
            if self._step.prepared and optimizer is not None:
                self._step.take_over(optimizer, leaves)
            else:
                for leaf in leaves:
                    leaf.give_gradient()
            self._mask.release_tables()


class Receiver:
    """Hook on a leaf: once it has left, the parameter takes the gradient of a forward that ran before.

    It does not know the leaf: garbage in cycles would hold the memory of hundreds of leaves.
    """

    def __init__(self, parameter: Tensor, entries: KeptEntries) -> None:
        self.parameter, self.entries, self.takes = parameter, entries, False

    def __call__(self, small: Tensor) -> None:  # noqa: D102
        if self.takes:
            give_gradient(small, self.entries, self.parameter)


def _is_free(p: Tensor) -> bool:
    """Tell if a parameter is trained, has no gradient yet, and nobody waits for one."""
    hooked = p._backward_hooks or getattr(p, "_post_accumulate_grad_hooks", None)
    return p.requires_grad and p.grad is None and not hooked and not is_sharded(p)


def _has_company() -> bool:
    """Tell if DistributedDataParallel may wait for the gradients of parameters."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()
