"""What moves the masks that one optimizer drives: hooks around its steps, and the clock in its groups."""

import sys
import warnings
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from mrreg.distributed.sharding import any_nonzero, is_sharded
from mrreg.errors import NoEffectWarning, check_int, invalid_argument, invalid_state
from mrreg.masks.base import CyclicMask
from mrreg.masks.frozen_entries import (
    GRADIENT,
    FrozenEntries,
    Group,
    MaskedGradient,
    has_slow_grad,
    is_static_without_grad,
    mask_gradient,
    update_source,
)
from mrreg.masks.module import MultirateMask
from mrreg.masks.thin_mask import ThinMask
from mrreg.masks.thin_step import Call, ThinStep

CLOCK, CYCLE, SEED = "mask_clock", "mask_k", "mask_seed"  # completed steps; k, 0 where masks have several; of `attach`
LEAST = {CLOCK: 0, CYCLE: 0, SEED: 0}


def read_clock(where: str, groups: Iterable[Mapping[str, Any]], seed: int, ks: Iterable[int]) -> tuple[int, int, int]:
    """Clock, seed and k that the groups of an optimizer say; at the start of training they say nothing.

    `ks` are those of the masks that are there. A k of 0 leaves them as they are.
    """
    found = [{key: group[key] for key in LEAST if key in group} for group in groups]
    found = [each for each in found if each]  # a group that was added since the last step has none yet
    if not found:
        return 0, seed, 0
    if any(each != found[0] for each in found) or len(found[0]) < len(LEAST):
        rule = f"complete and the same in all groups: {', '.join(LEAST)}"
        raise invalid_argument(ValueError, where, "the phase of the masks", rule, found)
    clock, k, seed = (check_int(where, key, found[0][key], least) for key, least in LEAST.items())
    if k == 0 and len(set(ks)) == 1:
        remedy = "Build the masks with the values of k that they were saved with."
        raise invalid_argument(
            ValueError, where, CYCLE, f"{next(iter(ks))}, as the masks say", "0, of masks with several k", remedy
        )
    return clock, seed, k


WHERE = "attach"


class MaskStepHooks:
    """The masks that one optimizer drives. The clock lives in its groups and nowhere else."""

    def __init__(self, optimizer: Optimizer, seed: int) -> None:
        self.seed = seed
        self.masks: list[tuple[CyclicMask, int]] = []  # with the index of their first draw
        self.roots: list[nn.Module] = []  # what a thin mask knows weakly
        self.thin = ThinStep()
        self.optimizer = weakref.ref(optimizer, self._orphaned)
        self.snapshots: list[
            tuple[Tensor, FrozenEntries, Tensor, bool]
        ] = []  # what the step in progress must not change
        self.lent: list[MaskedGradient] = []  # gradients that are somebody else's too
        self.in_step = False  # whether a step has begun and not ended
        self.frozen_entries: defaultdict[int, FrozenEntries] = defaultdict(FrozenEntries)
        self.handles: list[RemovableHandle] = []

    def start(self, optimizer: Optimizer) -> None:
        """Register the hooks and enter the phase that the groups say."""
        post = optimizer.register_step_post_hook(self._after_step)
        hooks = cast("OrderedDict[int, Any]", optimizer._optimizer_step_post_hooks)
        hooks.move_to_end(post.id, last=False)  # before those that read weights, such as an average of them
        self.handles = [
            post,
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_load_state_dict_pre_hook(self._check),
            optimizer.register_state_dict_pre_hook(self.thin.hide),
            optimizer.register_load_state_dict_post_hook(self.sync_masks),
            optimizer.register_state_dict_post_hook(self._save),
        ]
        moves_reported: list[bool] = []
        for mask, _first in self.masks:
            vars(mask)["_moves_reported"] = moves_reported
        self.sync_masks(optimizer)

    def stop(self) -> None:
        """Leave the optimizer and the masks without a trace."""
        for handle in self.handles:
            handle.remove()
        self._abandon()
        optimizer = self.optimizer()
        if optimizer is not None:
            self.thin.abandon(optimizer)
            for group in optimizer.param_groups:
                for key in (CLOCK, CYCLE, SEED):
                    group.pop(key, None)
        self._orphaned(None)

    def _orphaned(self, _: object, at_exit: Callable[[], bool] = sys.is_finalizing) -> None:
        for mask, _first in self.masks if not at_exit() else ():  # modules, `sys` too, are half gone then
            mask._detach()

    def sync_masks(self, optimizer: Optimizer) -> None:
        """Put the masks into the phase that the groups say."""
        self._write(optimizer, *self.read_clock(WHERE, optimizer.param_groups))

    def read_clock(self, where: str, groups: Iterable[Group]) -> tuple[int, int, int]:
        """Clock, seed and k that groups say, if masks can take them."""
        return read_clock(where, groups, self.seed, [mask.k for mask, _ in self.masks])

    def _check(self, optimizer: Optimizer, saved: dict[str, Any]) -> None:
        """Before a load, refuse what masks cannot take."""
        self.thin.abandon(optimizer)
        self.read_clock(f"{type(optimizer).__name__}.load_state_dict", saved.get("param_groups", ()))

    def _save(self, optimizer: Optimizer, saved: dict[str, Any]) -> None:
        """Save the state of slow entries also in the middle of a step, or after one that was interrupted."""
        for p, frozen, *_ in self.snapshots:
            own = optimizer.state.get(p)
            unmasked = {} if own is None or is_sharded(p) else frozen.unmasked_state()
            if unmasked:
                saved["state"] = {
                    key: own | unmasked if value is own else value for key, value in saved["state"].items()
                }
        self.thin.show(optimizer)

    def _write(self, optimizer: Optimizer, clock: int, seed: int, k: int) -> None:
        """Set clock and seed in every group, and the masks accordingly. k = 0: the masks' own, of several kinds."""
        for mask, _ in self.masks:
            if k and k != mask.k:
                mask.k = k
        kinds = {mask.k for mask, _ in self.masks}
        k = kinds.pop() if len(kinds) == 1 else 0
        for group in optimizer.param_groups:
            group.update({CLOCK: clock, CYCLE: k, SEED: seed})
        for mask, first in self.masks:
            mask._set_phase(clock, seed, first)

    def _before_step(self, *call: Any) -> Call | None:
        return _eagerly(self._before)(*call)  # type: ignore[no-any-return]

    def _after_step(self, *call: Any) -> None:
        _eagerly(self._after)(*call)

    def _before(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        """Before a step: remember what it must not change."""
        self.in_step = True
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
        """Before a step, for one parameter."""
        path, bits = update_source(optimizer, group), mask._bits[name]
        if mask._masking and not mask._forward_ran.masked and not grads_may_change:  # else the last step's gradient
            _warn_unread(mask, name, p, bits)
        if mask._masking and (lent := mask_gradient(p, bits, mask._mask_buffers[name].values)):
            self.lent.append(lent)
        if (path == GRADIENT and not grads_may_change) if mask._masking else mask.boost == 1:
            return  # zero times anything, or an ordinary step
        frozen = self.frozen_entries[id(p)]
        if mask._masking:
            frozen.snapshot(
                p,
                optimizer.state.get(p, {}),
                bits,
                mask._drawn,
                is_static_without_grad(optimizer, group) and not grads_may_change,
            )
        else:
            frozen.prepare_boost(p, bits, mask._drawn, mask.boost, path, group, mask._mask_buffers[name].values)
        self.snapshots.append((p, frozen, bits, bool(group.get("weight_decay"))))

    def _abandon(self) -> None:
        """Forget a step that never ended, for something in it failed."""
        while self.snapshots:
            _p, frozen, *_ = self.snapshots.pop()
            frozen.rollback()
        self._give_back()

    def _give_back(self) -> None:
        """Put the gradients back that were masked in a copy."""
        while self.lent:
            self.lent.pop().restore()

    def _after(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """After a step: put back what was held, boost what is slow, and move the clock."""
        if not self.in_step:
            return  # a subclass that calls super().step(): the step inside it was this one
        self.in_step = False
        self.thin.end(optimizer)
        optimizer._optimizer_step_pre_hooks.move_to_end(self.handles[1].id)  # type: ignore[attr-defined]
        while self.snapshots:
            p, frozen, bits, decayed = self.snapshots.pop()
            frozen.restore(p, optimizer.state.get(p, {}), bits, decayed)
            del bits  # its memory is free for the next draw
        for lent in self.lent if getattr(optimizer, "grad_scale", None) is not None else ():
            lent.write_back()  # a fused step has unscaled them, which no version tells
        self._give_back()
        if _is_step(optimizer):
            first = optimizer.param_groups[0]
            self._write(optimizer, first[CLOCK] + 1, first[SEED], 0)
        else:
            for mask, _first in self.masks:
                mask._forget_versions()  # a fused step that found inf has written what it read


def _warn_unread(mask: MultirateMask, name: str, p: Tensor, bits: Tensor) -> None:
    """Say once that a weight is used past its mask: the module around it reads it without calling the wrapper."""
    mask._forward_ran.masked = True  # or told
    if has_slow_grad(p, bits):
        kind = f"{type(mask.module).__name__} {tuple(p.shape)}"
        problem = f"the mask on {name!r} of a {kind} has no effect: its slow entries got a gradient, yet it has not run"
        remedy = "Use training mode; if the module around it reads the weight itself, wrap that module instead"
        message = f"{WHERE}: {problem}. {remedy}."
        warnings.warn(message, NoEffectWarning, stacklevel=6)


def _eagerly(hook: Callable[..., Any]) -> Callable[..., Any]:
    """The hook, kept out of the graph of a compiled step."""
    if not torch.compiler.is_compiling():
        return hook
    return torch.compiler.disable(hook)  # type: ignore[no-any-return, no-untyped-call]


def _is_step(optimizer: Optimizer) -> bool:
    """Whether parameters were really updated.

    Not so without any gradient, when a scaler found inf, and when torch's distributed checkpointing creates state with
    every lr and every gradient at zero.
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
