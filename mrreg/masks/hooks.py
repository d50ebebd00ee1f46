"""Hooks around the steps of one optimizer, which drive its masks; docs/design.md tells the life of a masked step."""

import copy
import sys
import weakref
from collections.abc import Callable, Iterator
from traceback import walk_stack
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from mrreg.distributed.sharding import any_nonzero, is_sharded, local
from mrreg.errors import invalid_argument, invalid_state
from mrreg.masks.clock import CLOCK, CYCLE, KEPT, KEYS, SEED, StepTimer, kept_units, read_clock
from mrreg.masks.mask import Mask
from mrreg.masks.optimizers import WHERE, examine, leaves
from mrreg.masks.step import Call, Leaf, with_closure
from mrreg.masks.tensors import MaskedTensor
from mrreg.module_utils import before_all_steps


class MaskStepHooks:
    """The masks that one optimizer drives. The clock lives in its groups and nowhere else."""

    def __init__(self, optimizer: Optimizer, seed: int, joint: bool = True) -> None:
        self.seed, self.joint, self.timer = seed, joint, StepTimer()
        self.masks: list[Mask] = []
        self.roots: list[nn.Module] = []  # what a mask knows weakly
        self._steps, self._had_gradients = 0, False  # how many there were; whether the last began with gradients
        self._leaves: dict[int, Leaf] = {}
        self._examined = set[int]()  # ids of parameters
        self._inside: list[Leaf] = []  # those in this step
        self._aside: list[tuple[Tensor, Tensor]] = []  # parameters of blocks that are off, and their gradients
        self._moving: list[tuple[MaskedTensor, Tensor, Tensor, float]] = []  # values before a joint step, and boost
        self.optimizer = weakref.ref(optimizer, self._detach_masks)
        self.handles: list[RemovableHandle] = []

    def register(self, optimizer: Optimizer) -> None:
        """Put the hooks on the optimizer."""
        before_all_steps(_come_last)
        add, hooks = self.handles.append, cast("Any", optimizer)
        add(post := optimizer.register_step_post_hook(self._after))
        hooks._optimizer_step_post_hooks.move_to_end(post.id, last=False)  # before an average reads the weights
        add(optimizer.register_step_pre_hook(self._before))
        add(optimizer.register_load_state_dict_pre_hook(self._check))
        add(optimizer.register_state_dict_pre_hook(self.leave))  # what is saved in a step, or after a failed one
        add(optimizer.register_load_state_dict_post_hook(self.sync_masks))

    def stop(self) -> None:
        """Leave the optimizer and the masks without a trace; a second call does nothing."""
        if not self.handles:
            return
        while self.handles:
            self.handles.pop().remove()
        if (optimizer := self.optimizer()) is not None:
            self.leave()
            for group in optimizer.param_groups:
                for key in KEYS:
                    group.pop(key, None)
        self._detach_masks(None)

    def _detach_masks(self, _: object, at_exit: Callable[[], bool] = sys.is_finalizing) -> None:
        if not at_exit():  # modules, `sys` too, are half gone then
            while self.masks:
                self.masks.pop().detach()

    def examine(self, optimizer: Optimizer) -> dict[Mask, frozenset[int]]:
        """Return the ids of parameters that move by their gradient, by mask; of those that have not been examined."""
        new = {id(p) for group in optimizer.param_groups for p in group["params"]} - self._examined
        found = {mask: new.intersection(id(p) for _, p in mask.masked_parameters()) for mask in self.masks}
        plain = examine(optimizer, set().union(*found.values()))
        self._examined |= new
        return {mask: plain & ids for mask, ids in found.items()}

    def sync_masks(self, optimizer: Optimizer) -> None:
        """Put the masks into the phase that the groups say."""
        self._write(optimizer, *read_clock(WHERE, optimizer.param_groups, self.seed, self.masks))

    def _check(self, optimizer: Optimizer, saved: dict[str, Any]) -> dict[str, Any]:
        """Refuse a saved state that masks cannot take, before it is loaded."""
        self.leave()
        groups = saved.get("param_groups", ())
        read_clock(f"{type(optimizer).__name__}.load_state_dict", groups, self.seed, self.masks)
        # torch takes the tensors themselves, so that the optimizer they come from would go on in the same memory
        return saved | {"state": copy.deepcopy(saved["state"])} if "state" in saved else saved

    def _write(self, optimizer: Optimizer, clock: int, seed: int, ks: tuple[int, ...]) -> None:
        """Put the masks into a phase and write it into the groups; k is one number where all masks have the same."""
        for mask, k in zip(self.masks, ks, strict=True):
            mask.k = k
            mask.set_phase(clock, seed, self.joint)
        phase = {CLOCK: clock, CYCLE: ks[0] if len(set(ks)) == 1 else ks, SEED: seed}
        kept = kept_units(self.masks)
        for group in optimizer.param_groups:
            group.update(phase | {KEPT: kept} if kept else phase)

    @_disable_dynamo
    def _before(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        """Let the optimizer see what is present alone, or remember what a joint step moves from."""
        if _is_inner(optimizer):
            return None
        self.leave()  # before the groups are read, where a failed step may have left its leaves
        self._moving.clear()
        self._steps += 1
        self._had_gradients = any(p.grad is not None for group in optimizer.param_groups for p in group["params"])
        late = any(map(callable, (*args[1:], kwargs.get("closure"))))  # a closure writes gradients: gathered after it
        held = []
        for tensor, p, mask in self._absent(optimizer):
            if mask.masking:
                held.append((tensor, p))
            elif (boost := mask.boost_of(p)[0]) != 1 and (late or p.grad is not None):
                here = local(p)  # is kept in the memory of masked gradients, which is free now
                self._moving.append((tensor, p, tensor.gradients.empty_like(here).copy_(here), boost))
        if late and held:
            return with_closure((args, kwargs), lambda: self._enter(optimizer, held))
        self._enter(optimizer, held)
        return None

    def _absent(self, optimizer: Optimizer) -> Iterator[tuple[MaskedTensor, Tensor, Mask]]:
        """Yield the parameters of the optimizer of which something is absent in this cycle."""
        group_of = {id(p): group for group in optimizer.param_groups for p in group["params"]}
        for mask in self.masks:
            for name, p in mask.masked_parameters() if mask.drawn is not None else ():
                if is_sharded(p) and id(p) not in group_of and p.requires_grad:
                    remedy = "Shard the model, then build the optimizer, then attach."
                    raise invalid_state(WHERE, "fully_shard came after the optimizer, which moves nothing now", remedy)
                if group := group_of.get(id(p)):
                    check_fast(group, name)
                    if id(p) not in self._examined:  # its group was added since
                        for each, plain in self.examine(optimizer).items():
                            each.plain = plain | (each.plain or frozenset())
                    state = leaves(optimizer.state.get(p, {})).values() if mask.plain else ()
                    if mask.plain and any(isinstance(x, Tensor) and x.dim() and x.shape == p.shape for x in state):
                        mask.plain -= {id(p)}  # a schedule has turned a momentum on
                    if (tensor := mask.tensors[name]).off or tensor.cuts:
                        yield tensor, p, mask

    @torch.no_grad()
    def _enter(self, optimizer: Optimizer, held: list[tuple[MaskedTensor, Tensor]]) -> None:
        """Put kept entries into the places of parameters that have a gradient."""
        lists = [group["params"] for group in optimizer.param_groups if held]
        places = {id(p): (each, i) for each in lists for i, p in enumerate(each)}
        for tensor, p in held:
            if p.grad is not None and tensor.off:
                self._aside.append((p, p.grad))
                p.grad = None
            elif p.grad is not None:
                leaf = self._leaves.get(id(p)) or self._leaves.setdefault(id(p), Leaf(p))
                leaf.enter(optimizer, *places[id(p)], tensor, self._steps)
                self._inside.append(leaf)

    @torch.no_grad()
    def leave(self, *_: Any, completed: bool = False) -> None:
        """Give parameters their places back; what a step that is not completed, for it failed, has done is lost."""
        cleared = self._inside and all(each.leaf.grad is None for each in self._inside)
        while self._inside:
            self._inside.pop().leave(cast("Optimizer", self.optimizer()), completed)
        while self._aside:
            p, grad = self._aside.pop()
            p.grad = grad if p.grad is None and not cleared else p.grad

    @torch.no_grad()
    def _end(self) -> None:
        """Write kept entries back after a step, or move absent ones further."""
        self.leave(completed=True)
        while self._moving:
            tensor, parameter, before, boost = self._moving.pop()
            here = local(parameter)
            kept = None if tensor.off else tensor.entries(parameter).take(here)
            torch.lerp(before, here, boost, out=here)
            if kept is not None:
                tensor.entries(parameter).put(kept, here)

    @_disable_dynamo
    def _after(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Put back what was held in a step, boost what is slow, and move the clock."""
        if _is_inner(optimizer):
            return
        self._end()
        for mask in self.masks:
            mask.warn_if_unused()
        if not _is_step(optimizer, self._had_gradients):
            return
        first = optimizer.param_groups[0]
        device, clock = first["params"][0].device, first[CLOCK] + 1
        self.timer.end(device, {mask.masking for mask in self.masks if mask.p > 0 and (mask.k > 1 or not self.joint)})
        self._write(optimizer, clock, first[SEED], tuple(mask.k for mask in self.masks))
        if any(g.kept < g.units and not g.keeps_shape for mask in self.masks for g in mask.groups):
            self.timer.compare()
        self.timer.begin(device)


@_disable_dynamo
def _come_last(optimizer: Optimizer, *_: Any) -> None:
    """Let all other hooks of an optimizer, which may write gradients, run before that which gathers them."""
    hooks: Any = optimizer._optimizer_step_pre_hooks
    for key in [key for key, hook in hooks.items() if isinstance(getattr(hook, "__self__", None), MaskStepHooks)]:
        hooks.move_to_end(key)


def _is_inner(optimizer: Optimizer) -> bool:
    """Tell if two wrappers of `step` are running, as where a subclass does more and calls super().step()."""
    hooked = [kind for kind in type(optimizer).__mro__ if hasattr(vars(kind).get("step"), "hooked")]
    file = Optimizer.profile_hook_step.__code__.co_filename  # of the wrapper that calls hooks
    steps = (f for f, _ in walk_stack(None) if f.f_code.co_name == "wrapper" and f.f_code.co_filename == file)
    return len(hooked) > 1 and sum(frame.f_locals.get("self") is optimizer for frame in steps) > 1


def _is_step(optimizer: Optimizer, had_gradients: bool) -> bool:
    """Return False without gradients, where a scaler found inf, and where torch's checkpointing creates state."""
    if getattr(optimizer, "found_inf", None):
        return False
    grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    if all(group.get("lr", 1) == 0 for group in optimizer.param_groups):  # it does so with zeros for gradients
        return any(map(any_nonzero, grads))
    return had_gradients or bool(grads)  # a subclass may clear them in its step


def check_fast(group: dict[str, Any], path: str) -> None:
    """Refuse a slow part of a `Multirate`: its drift would move what a mask holds."""
    if group.get("period", 1) != 1:
        remedy = "Masked parameters must be in a fast part, which is updated on every step."
        raise invalid_argument(ValueError, WHERE, path, "in a part of period 1", group["period"], remedy)
