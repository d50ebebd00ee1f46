"""Hooks around the steps of one optimizer, which drive its masks.

The life of a masked step, in the order of the training loop:

    MultirateMask.forward     computes with slow entries at zero (module.py)
    loss.backward()           gives them no gradient (masked_tensor.py)
    MaskStepHooks._before     remembers what the step must not change or moves further (frozen_entries.py, thin_step.py)
    optimizer.step()          is the optimizer's own
    MaskStepHooks._after      puts that back and moves the clock (mask_clock.py); a new cycle is drawn (sampling.py)
"""

import copy
import sys
import warnings
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from mrreg.distributed.sharding import any_nonzero, is_sharded
from mrreg.errors import NoEffectWarning, invalid_argument, invalid_state
from mrreg.masks.base import CyclicMask, MoveReport
from mrreg.masks.frozen_entries import (
    FrozenEntries,
    Group,
    MaskedGradient,
    has_slow_grad,
    is_static_without_grad,
    mask_gradient,
)
from mrreg.masks.mask_clock import CLOCK, SEED, clear_clock, read_clock, write_clock
from mrreg.masks.module import MultirateMask
from mrreg.masks.superseded import Superseded
from mrreg.masks.thin_mask import ThinMask
from mrreg.masks.thin_resident import ResidentLeaves
from mrreg.masks.thin_step import Call, ThinStep

WHERE = "attach"


class MaskStepHooks:
    """The masks that one optimizer drives. The clock lives in its groups and nowhere else."""

    def __init__(self, optimizer: Optimizer, seed: int, is_wrapped: bool = False) -> None:
        self.seed = seed
        self.move_report = MoveReport(tolerated=int(is_wrapped))
        self.masks: list[tuple[CyclicMask, int]] = []  # with the index of their first draw
        self.roots: list[nn.Module] = []  # what a thin mask knows weakly
        self.thin = ThinStep()
        self.optimizer = weakref.ref(optimizer, self._detach_masks)
        self.snapshots: list[tuple[Tensor, FrozenEntries, Tensor, bool]] = []  # undone after the step
        self.masked_gradients: list[MaskedGradient] = []
        self.frozen_entries: defaultdict[int, FrozenEntries] = defaultdict(FrozenEntries)
        self.handles: list[RemovableHandle] = []

    def register(self, optimizer: Optimizer) -> None:
        """Put the hooks on the optimizer."""
        add, hooks = self.handles.append, cast("Any", optimizer)
        add(post := optimizer.register_step_post_hook(self._after_step))
        hooks._optimizer_step_post_hooks.move_to_end(post.id, last=False)  # before an average reads the weights
        add(optimizer.register_step_pre_hook(self._before_step))
        add(optimizer.register_load_state_dict_pre_hook(self._check))
        add(optimizer.register_state_dict_pre_hook(self._show_whole))
        add(optimizer.register_load_state_dict_post_hook(self.sync_masks))
        add(optimizer.register_state_dict_post_hook(self._save))
        for mask, _first in self.masks:
            vars(mask)["_move_report"] = self.move_report
            if isinstance(mask, ThinMask) and mask.resident:
                mask.write_back()
                mask.residents = ResidentLeaves(mask, optimizer, self.thin) if not self.move_report.tolerated else None

    def stop(self) -> None:
        """Leave the optimizer and the masks without a trace; a second call does nothing."""
        if not self.handles:
            return
        while self.handles:
            self.handles.pop().remove()
        self._abandon()
        optimizer = self.optimizer()
        if optimizer is not None:
            self.thin.abandon(optimizer)
            clear_clock(optimizer.param_groups)
        self._detach_masks(None)

    def release(self, masks: Iterable[CyclicMask]) -> None:
        """Leave some of the masks to another optimizer."""
        taken = list(masks)
        kept = [i for i, (mask, _) in enumerate(self.masks) if all(mask is not each for each in taken)]
        self.masks, self.roots = [self.masks[i] for i in kept], [self.roots[i] for i in kept]
        optimizer = self.optimizer()
        if optimizer is not None:
            optimizer.register_step_pre_hook(Superseded())
        if not self.masks:
            self.stop()

    def _detach_masks(self, _: object, at_exit: Callable[[], bool] = sys.is_finalizing) -> None:
        if not at_exit():  # modules, `sys` too, are half gone then
            while self.masks:
                self.masks.pop()[0]._detach()

    def sync_masks(self, optimizer: Optimizer) -> None:
        """Put the masks into the phase that the groups say."""
        self._write(optimizer, *self.read_clock(WHERE, optimizer.param_groups))

    def read_clock(self, where: str, groups: Iterable[Mapping[str, Any]]) -> tuple[int, int, tuple[int, ...]]:
        """Return clock, seed and the k of each mask that groups say, if masks can take them."""
        return read_clock(where, groups, self.seed, [mask.k for mask, _ in self.masks], self._kept())

    def _kept(self) -> tuple[int, ...]:
        thin = (mask for mask, _ in self.masks if isinstance(mask, ThinMask))
        return tuple(group.kept for mask in thin for group in mask.groups)

    def _check(self, optimizer: Optimizer, saved: dict[str, Any]) -> dict[str, Any]:
        """Refuse a saved state that masks cannot take, before it is loaded."""
        self.thin.abandon(optimizer)
        self._write_back()
        self.read_clock(f"{type(optimizer).__name__}.load_state_dict", saved.get("param_groups", ()))
        # torch takes the tensors themselves, so that the optimizer they come from would go on in the same memory
        return saved | {"state": copy.deepcopy(saved["state"])} if "state" in saved else saved

    def _show_whole(self, optimizer: Optimizer) -> None:
        """Show whole parameters and their state to who saves the optimizer."""
        self._write_back()
        self.thin.hide(optimizer)

    def _write_back(self) -> None:
        for residents in self._residents():
            residents.leave()

    def _residents(self) -> Iterator[ResidentLeaves]:
        for mask, _ in self.masks:
            if isinstance(mask, ThinMask) and mask.residents is not None:
                yield mask.residents

    def _save(self, optimizer: Optimizer, saved: dict[str, Any]) -> None:
        """Save the state of slow entries also in the middle of a step, or after one that was interrupted."""
        for p, frozen, bits, _ in self.snapshots:
            state = optimizer.state.get(p)
            unmasked = {} if state is None or is_sharded(p) else frozen.unmasked_state(bits)
            if unmasked:
                saved["state"] = {
                    key: state | unmasked if value is state else value for key, value in saved["state"].items()
                }
        self.thin.show(optimizer)

    def _write(self, optimizer: Optimizer, clock: int, seed: int, ks: tuple[int, ...]) -> None:
        """Put the masks into a phase and write it into the groups."""
        for (mask, first), k in zip(self.masks, ks, strict=True):
            if k != mask.k:
                mask.k = k
            mask._set_phase(clock, seed, first)
        write_clock(optimizer.param_groups, clock, seed, ks, self._kept())

    def _before_step(self, *call: Any) -> Call | None:
        return _eagerly(self._before)(*call)  # type: ignore[no-any-return]

    def _after_step(self, *call: Any) -> None:
        _eagerly(self._after)(*call)

    def _before(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        """Remember, before a step, what it must not change."""
        for mask, _ in self.masks:
            if isinstance(mask, ThinMask) and not mask._masking:  # a joint step moves whole parameters
                mask.write_back()
        self.thin.running = True
        last = next(reversed(optimizer._optimizer_step_pre_hooks)) == self.handles[1].id
        # a later hook or a closure may still write gradients
        grads_may_change = not last or any(map(callable, chain(args[1:], kwargs.values())))
        group_of = {id(p): group for group in optimizer.param_groups for p in group["params"]}
        self._abandon()
        thin = []
        for mask, _ in self.masks:
            for name, p in mask._masked_parameters() if mask._drawn is not None else ():
                if is_sharded(p) and id(p) not in group_of and p.requires_grad:
                    remedy = "Shard the model, then build the optimizer, then attach."
                    raise invalid_state(WHERE, "fully_shard came after the optimizer, which moves nothing now", remedy)
                if group := group_of.get(id(p)):
                    check_fast(group, name)
                    if isinstance(mask, ThinMask):
                        thin.append((mask.tensors[name], p, mask))
                    elif isinstance(mask, MultirateMask) and (grads_may_change or p.grad is not None):
                        self._prepare_param(optimizer, mask, name, p, group, grads_may_change)
        return self.thin.begin(optimizer, thin, (args, kwargs), grads_may_change)

    def _prepare_param(
        self, optimizer: Optimizer, mask: MultirateMask, name: str, p: Tensor, group: Group, grads_may_change: bool
    ) -> None:
        """Prepare one parameter for a step."""
        bits = mask._bits[name]
        if mask._masking and not mask._forward_ran.masked and not grads_may_change:  # else the last step's gradient
            _warn_unread(mask, name, p, bits)
        memory = mask._mask_buffers[name].values  # of the masked weight: free until the next forward
        if mask._masking and (gradient := mask_gradient(p, bits, memory)):
            self.masked_gradients.append(gradient)
        frozen = self.frozen_entries[id(p)]
        if mask._masking:
            is_static = is_static_without_grad(optimizer, group) and not grads_may_change
            frozen.snapshot(p, optimizer.state.get(p, {}), bits, is_static)
        elif mask.boost != 1:
            frozen.prepare_boost(p, mask.boost)
        else:
            return  # an ordinary step
        self.snapshots.append((p, frozen, bits, bool(group.get("weight_decay"))))

    def _abandon(self) -> None:
        """Forget a step that failed half-way."""
        while self.snapshots:
            _p, frozen, bits, _decayed = self.snapshots.pop()
            frozen.abandon(bits)
        self._restore_gradients()

    def _restore_gradients(self) -> None:
        while self.masked_gradients:
            self.masked_gradients.pop().restore()

    def _after(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Put back what was held in a step, boost what is slow, and move the clock."""
        if not self.thin.running:
            return  # a subclass that calls super().step(): the step inside it was this one
        self.thin.running = False
        self.thin.end(optimizer)
        for mask, _first in self.masks:
            mask.warn_if_unused()
        optimizer._optimizer_step_pre_hooks.move_to_end(self.handles[1].id)  # type: ignore[attr-defined]
        while self.snapshots:
            p, frozen, bits, decayed = self.snapshots.pop()
            frozen.restore(p, optimizer.state.get(p, {}), bits, decayed)
            del bits  # its memory is free for the next draw
        for gradient in self.masked_gradients if getattr(optimizer, "grad_scale", None) is not None else ():
            gradient.write_back()  # a fused step has unscaled them, which no version tells
        self._restore_gradients()
        if _is_step(optimizer):
            first = optimizer.param_groups[0]
            self._write(optimizer, first[CLOCK] + 1, first[SEED], tuple(mask.k for mask, _ in self.masks))
        else:
            for mask, _first in self.masks:
                mask._forget_versions()  # a fused step that found inf has written what it read


def _warn_unread(mask: MultirateMask, name: str, p: Tensor, bits: Tensor) -> None:
    """Warn once that a weight is used past its mask: the module around it reads it without calling the wrapper."""
    mask._forward_ran.masked = True  # or has been reported
    if has_slow_grad(p, bits):
        kind = f"{type(mask.module).__name__} {tuple(p.shape)}"
        problem = f"the mask on {name!r} of a {kind} has no effect: its slow entries got a gradient, yet it has not run"
        remedy = "Use training mode; if the module around it reads the weight itself, wrap that module instead"
        message = f"{WHERE}: {problem}. {remedy}."
        warnings.warn(message, NoEffectWarning, stacklevel=6)


def _eagerly(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Keep a hook out of the graph of a compiled step."""
    if not torch.compiler.is_compiling():
        return hook
    return torch.compiler.disable(hook)  # type: ignore[no-any-return, no-untyped-call]


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


def check_fast(group: Group, path: str) -> None:
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
