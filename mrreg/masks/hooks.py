"""Hooks around the steps of one optimizer, which drive its masks.

The life of a masked step, in the order of the training loop:

    forward.run             computes without what is absent (forward.py)
    loss.backward()           gives it no gradient (entries.py)
    MaskStepHooks._before     lets the optimizer see what is present alone, or remembers the rest (step.py)
    optimizer.step()          is the optimizer's own
    MaskStepHooks._after      puts that back and moves the clock (clock.py); a new cycle is drawn (sampling.py)
"""

import copy
import functools
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from mrreg.distributed.sharding import any_nonzero, is_sharded
from mrreg.errors import invalid_argument, invalid_state
from mrreg.masks.clock import CLOCK, SEED, StepTimer, clear_clock, read_clock, write_clock
from mrreg.masks.mask import Mask
from mrreg.masks.nested import leaves
from mrreg.masks.step import Call, MaskedStep

WHERE = "attach"


def _eager(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Keep a hook out of the graph of a compiled step."""

    @functools.wraps(hook)
    def call(*args: Any) -> Any:
        if torch.compiler.is_compiling():
            return torch.compiler.disable(hook)(*args)  # type: ignore[no-untyped-call]
        return hook(*args)

    return call


class MaskStepHooks:
    """The masks that one optimizer drives. The clock lives in its groups and nowhere else."""

    def __init__(self, optimizer: Optimizer, seed: int, joint: bool = True, is_wrapped: bool = False) -> None:
        self.seed, self.joint = seed, joint
        self.is_wrapped = is_wrapped
        self.masks: list[tuple[Mask, int]] = []  # with the index of their first draw
        self.roots: list[nn.Module] = []  # what a thin mask knows weakly
        self.step, self.timer = MaskedStep(), StepTimer()
        self.optimizer = weakref.ref(optimizer, self._detach_masks)
        self.handles: list[RemovableHandle] = []

    def register(self, optimizer: Optimizer) -> None:
        """Put the hooks on the optimizer."""
        add, hooks = self.handles.append, cast("Any", optimizer)
        add(post := optimizer.register_step_post_hook(self._after))
        hooks._optimizer_step_post_hooks.move_to_end(post.id, last=False)  # before an average reads the weights
        add(optimizer.register_step_pre_hook(self._before))
        add(optimizer.register_load_state_dict_pre_hook(self._check))
        add(optimizer.register_state_dict_pre_hook(self.step.hide))
        add(optimizer.register_load_state_dict_post_hook(self.sync_masks))
        add(optimizer.register_state_dict_post_hook(lambda optimizer, _: self.step.show(optimizer)))
        for mask, _first in self.masks:
            mask.tolerated, mask.timer = int(self.is_wrapped), self.timer

    def stop(self) -> None:
        """Leave the optimizer and the masks without a trace; a second call does nothing."""
        if not self.handles:
            return
        while self.handles:
            self.handles.pop().remove()
        optimizer = self.optimizer()
        if optimizer is not None:
            self.step.abandon(optimizer)
            clear_clock(optimizer.param_groups)
        self._detach_masks(None)

    def _detach_masks(self, _: object, at_exit: Callable[[], bool] = sys.is_finalizing) -> None:
        if not at_exit():  # modules, `sys` too, are half gone then
            while self.masks:
                self.masks.pop()[0].detach()

    def sync_masks(self, optimizer: Optimizer) -> None:
        """Put the masks into the phase that the groups say."""
        self._write(optimizer, *self.read_clock(WHERE, optimizer.param_groups))

    def read_clock(self, where: str, groups: Iterable[Mapping[str, Any]]) -> tuple[int, int, tuple[int, ...]]:
        """Return clock, seed and the k of each mask that groups say, if masks can take them."""
        return read_clock(where, groups, self.seed, [mask.k for mask, _ in self.masks], self._kept())

    def _kept(self) -> tuple[int, ...]:
        return tuple(group.kept for mask, _ in self.masks for group in mask.groups)

    def _check(self, optimizer: Optimizer, saved: dict[str, Any]) -> dict[str, Any]:
        """Refuse a saved state that masks cannot take, before it is loaded."""
        self.step.abandon(optimizer)
        self.read_clock(f"{type(optimizer).__name__}.load_state_dict", saved.get("param_groups", ()))
        # torch takes the tensors themselves, so that the optimizer they come from would go on in the same memory
        return saved | {"state": copy.deepcopy(saved["state"])} if "state" in saved else saved

    def _write(self, optimizer: Optimizer, clock: int, seed: int, ks: tuple[int, ...]) -> None:
        """Put the masks into a phase and write it into the groups."""
        for (mask, first), k in zip(self.masks, ks, strict=True):
            if k != mask.k:
                mask.k = k
            mask.set_phase(clock, seed, first, self.joint)
        write_clock(optimizer.param_groups, clock, seed, ks, self._kept())

    @_eager
    def _before(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        """Remember, before a step, what it must not change."""
        if not self.step.is_nested:
            self.step.abandon(optimizer)  # before the groups are read, where a failed step may have left its leaves
        self.step.running = True
        last = next(reversed(optimizer._optimizer_step_pre_hooks)) == self.handles[1].id
        # a later hook or a closure may still write gradients
        grads_may_change = not last or any(map(callable, chain(args[1:], kwargs.values())))
        group_of = {id(p): group for group in optimizer.param_groups for p in group["params"]}
        masked = []
        for mask, _ in self.masks:
            for name, p in mask.masked_parameters() if mask.drawn is not None else ():
                if is_sharded(p) and id(p) not in group_of and p.requires_grad:
                    remedy = "Shard the model, then build the optimizer, then attach."
                    raise invalid_state(WHERE, "fully_shard came after the optimizer, which moves nothing now", remedy)
                if group := group_of.get(id(p)):
                    check_fast(group, name)
                    if mask.plain and _has_state(optimizer, p):  # a schedule may have turned a momentum on
                        mask.plain -= {id(p)}
                    masked.append((mask.tensors[name], p, mask))
        return self.step.begin(optimizer, masked, (args, kwargs), grads_may_change)

    @_eager
    def _after(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Put back what was held in a step, boost what is slow, and move the clock."""
        if not self.step.running:
            return  # a subclass that calls super().step(): the step inside it was this one
        self.step.running = False
        self.step.end(optimizer)
        for mask, _first in self.masks:
            mask.warn_if_unused()
        optimizer._optimizer_step_pre_hooks.move_to_end(self.handles[1].id)  # type: ignore[attr-defined]
        if _is_step(optimizer):
            self.timer.end({mask.masking for mask, _ in self.masks if mask.p > 0 and (mask.k > 1 or not self.joint)})
            first = optimizer.param_groups[0]
            self._write(optimizer, first[CLOCK] + 1, first[SEED], tuple(mask.k for mask, _ in self.masks))
            if any(g.kept < g.units and not g.keeps_shape for mask, _ in self.masks for g in mask.groups):
                self.timer.compare()
        else:
            self.timer.begun = None
            for mask, _first in self.masks:
                mask.forget_versions()  # a fused step that found inf has written what it read


def _has_state(optimizer: Optimizer, p: Tensor) -> bool:
    """Tell if the optimizer keeps a number for each entry of a parameter, as for a momentum."""
    state = leaves(optimizer.state.get(p, {}))
    return any(isinstance(value, Tensor) and value.dim() and value.shape == p.shape for _, value in state)


def _is_step(optimizer: Optimizer) -> bool:
    """Return True if parameters were really updated.

    Nothing moves without any gradient, when a scaler found inf, and when torch's distributed checkpointing creates
    state with every lr and every gradient at zero.
    """
    found_inf = getattr(optimizer, "found_inf", None)
    if found_inf is not None and bool(found_inf):
        return False
    grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    if all(group.get("lr", 1) == 0 for group in optimizer.param_groups):
        return any(map(any_nonzero, grads))
    return bool(grads)


def check_fast(group: dict[str, Any], path: str) -> None:
    """Refuse a slow part of a `Multirate`: its drift would move what a mask holds."""
    if group.get("period", 1) != 1:
        remedy = "Masked parameters must be in a fast part, which is updated on every step."
        raise invalid_argument(ValueError, WHERE, path, "in a part of period 1", group["period"], remedy)


def driving(optimizer: Optimizer) -> MaskStepHooks | None:
    """Return the hooks that drive masks from an optimizer's steps."""
    for hook in optimizer._optimizer_step_post_hooks.values():
        hooks = getattr(hook, "__self__", None)
        if isinstance(hooks, MaskStepHooks):
            return hooks
    return None
