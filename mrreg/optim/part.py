"""One base optimizer of a `Multirate`: it steps at the sync steps of its groups, which drift in between.

Drift repeats the direction of the last sync step, scaled with the lr of the moment: the momentum buffer of SGD and
LangevinSGD; the gradient of SGD without buffer or decay; else displacement / lr.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from mrreg.distributed.sharding import any_nonzero, local_all
from mrreg.errors import quoted
from mrreg.optim.clock import Group, is_due, is_zero
from mrreg.optim.langevin import LangevinSGD

DIRECTION = "direction"  # to drift along, where no buffer of the base is one
GATHERED = "gathered"  # sum of the gradients since the last sync step
RESTING = "resting"  # set on a parameter that had no gradient at its last sync step
OURS = {DIRECTION, GATHERED, RESTING}  # what is added to a base's state of a parameter
BUFFER = "momentum_buffer"
BUFFERED = (torch.optim.SGD, LangevinSGD)  # exact types: subclasses may do anything with their buffer

State = defaultdict[Tensor, Any]


class Part:
    """Steps a base on the groups that are due and moves the others along their directions."""

    def __init__(self, base: Optimizer, state: State, drift: bool) -> None:
        base.state = state  # one source of truth for all bases
        self.base, self._drift = base, drift
        step: Any = type(base).step
        self._base_step = step.__wrapped__ if getattr(step, "hooked", False) else step  # without torch's profiler

    def advance(self, state: State, ends: Mapping[int, int], now: int) -> None:
        """Move all groups by one step; `ends` has the next sync step of those that are due, by the group's id."""
        groups = self.base.param_groups
        rates = [(group, group["lr"]) for group in groups if group["slow_lr"] == "per_gradient"]
        for group, lr in rates:  # for this step only, so that schedules find in "lr" what they have set
            begin, end = (now, ends[id(group)]) if id(group) in ends else (group["last_sync"], group["next_sync"])
            group["lr"] = lr / (end - begin)
        try:
            for group in groups:
                if id(group) not in ends:
                    self._move_between(group, state)
            if due := [group for group in groups if id(group) in ends]:
                self._sync(due, state, ends, now)
        finally:
            for group, lr in rates:
                group["lr"] = lr

    def lacks_direction(self) -> bool:
        """Return True if a part steps at lr = 0, which does not tell where to go in the rest of its cycle."""
        return any(
            is_due(group)
            and group["period"] > 1
            and is_zero(group["lr"])
            and not (self._drift and (buffer_is_direction(self.base, group) or gradient_is_direction(self.base, group)))
            for group in self.base.param_groups
        )

    def _move_between(self, group: Group, state: State) -> None:
        """Move a group that is not due along its directions, and add its gradients up where they count."""
        params, directions = moving(self.base, group, state) if self._drift else ([], [])
        if params:
            torch._foreach_add_(local_all(params), local_all(directions), alpha=-float(group["lr"]))
        for p in group["params"] if group["gradient"] != "sync" else ():
            if p.grad is not None:
                sums = state[p].get(GATHERED)
                state[p][GATHERED] = p.grad.clone() if sums is None else sums.add_(p.grad)

    def _sync(self, due: list[Group], state: State, ends: Mapping[int, int], now: int) -> None:
        """Let the base step on the groups that are due, and keep the directions of those that will be held."""
        with gathered_gradients(due, state, now):
            held = []
            for group in (each for each in due if ends[id(each)] > now + 1):
                params = [p for p in group["params"] if p.grad is not None]
                held.append((group, params, begin_directions(self.base, group, params, state)))
            self._step(due, state)
            for group, params, buffers in held:
                end_directions(self.base, group, params, buffers)
        for group, params, directions in held:
            if self._drift:
                self._hold(group, params, directions, state)
            elif params:
                directions = directions or [state[p][BUFFER] for p in params]  # the base's own
                rest_of_cycle = (now + 1 - ends[id(group)]) * float(group["lr"])
                torch._foreach_add_(local_all(params), local_all(directions), alpha=rest_of_cycle)

    def _hold(self, group: Group, params: list[Tensor], directions: list[Tensor], state: State) -> None:
        """Keep directions until the next sync step (none are given where the base's buffers are); without one, rest."""
        for p in set(group["params"]).difference(params):
            if state.get(p):  # Adam takes an empty state for its first step, so nothing is put into one
                state[p].pop(DIRECTION, None)
                state[p][RESTING] = True
        for p, direction in zip_longest(params, directions):
            state[p].pop(RESTING, None)
            state[p].pop(DIRECTION, None)
            if direction is not None:
                state[p][DIRECTION] = direction

    def _step(self, groups: list[Group], state: State) -> None:
        """Let the base step on some groups; hooks of all optimizers see the step of the `Multirate` alone."""
        base, own = self.base, self.base.param_groups
        base.state, base.param_groups = state, groups  # the user may have replaced the state
        try:
            for hook in base._optimizer_step_pre_hooks.values():
                hook(base, (), {})
            self._base_step(base)
            for hook in base._optimizer_step_post_hooks.values():
                hook(base, (), {})
        finally:
            base.param_groups = own
        base._opt_called = True  # type: ignore[attr-defined]  # a scheduler of the base asks whether it has stepped

    def create_state(self, state: State) -> None:
        """Give parameters with a gradient and no state the state of their first step, which must not count."""
        groups = self.base.param_groups
        fresh = [[p for p in group["params"] if p.grad is not None and not state.get(p)] for group in groups]
        no_decay = {"weight_decay": 0.0}  # else decay would be all that the new state holds
        self._step([{**g, **no_decay, "params": params} for g, params in zip(groups, fresh, strict=True)], state)
        for group, params in zip(groups, fresh, strict=True):
            for p in params:
                if "step" in state.get(p, {}):
                    state[p]["step"] = state[p]["step"] * 0
                if self._drift and group["period"] > 1 and not buffer_is_direction(self.base, group):
                    state[p][DIRECTION] = torch.zeros_like(p)
            ensure_gathered(group, state)

    def load(self, groups: list[Group], state: State) -> None:
        """Take what was loaded."""
        before = self.base.param_groups
        self.base.__setstate__({"state": state_for_bases(state), "param_groups": groups})
        self.base.state = state
        for old, group in zip(before, groups, strict=True):
            if missing := [key for key in self.base.defaults if key in old and key not in group]:
                raise ValueError(f"{type(self.base).__name__} without {quoted(missing)}")
            buffers = [(p, (state.get(p) or {}).get(BUFFER)) for p in group["params"] if type(self.base) in BUFFERED]
            if any(buffer is not None and buffer.shape != p.shape for p, buffer in buffers):
                raise ValueError(f"saved with {BUFFER} of other shapes: the model differs")

    def for_copy(self) -> tuple[type[Optimizer], dict[str, Any]]:
        """Return class and attributes for a copy; torch would keep three attributes and lose those of third parties."""
        if type(self.base).__getstate__ is not Optimizer.__getstate__:
            return type(self.base), self.base.__getstate__()
        left_out = ("step", "_zero_grad_profile_name")  # the step that a scheduler wrapped, a name for the profiler
        kept = {k: v for k, v in vars(self.base).items() if k not in left_out and not k.startswith("_optimizer_")}
        return type(self.base), kept


def state_for_bases(state: Mapping[Any, Any]) -> dict[Any, Any]:
    """Leave out the state in which a base finds nothing of its own: Adam refuses one that is not empty."""
    return defaultdict(dict, {p: each for p, each in state.items() if isinstance(p, str) or each.keys() - OURS})


def buffer_is_direction(base: Optimizer, group: Group) -> bool:
    """Return True if the base's momentum buffer is the direction, so that drift needs no memory."""
    return type(base) in BUFFERED and group["momentum"] != 0 and not group.get("nesterov")


def gradient_is_direction(base: Optimizer, group: Group) -> bool:
    """Return True where SGD moves along its gradient: cheaper than a displacement, and known at lr = 0 too."""
    return type(base) is torch.optim.SGD and not (group["weight_decay"] or group["nesterov"] or group["maximize"])


def begin_directions(base: Optimizer, group: Group, params: list[Tensor], state: State) -> list[Tensor]:
    """Return memory for directions, that of the old ones where there are some, with a copy of what is about to move."""
    if not params or buffer_is_direction(base, group):
        return []
    known = [state.get(p, {}).get(DIRECTION) for p in params]
    buffers = [torch.empty_like(p) if d is None else d for p, d in zip(params, known, strict=True)]
    if not gradient_is_direction(base, group):
        torch._foreach_copy_(local_all(buffers), local_all(params))
    return buffers


def end_directions(base: Optimizer, group: Group, params: list[Tensor], buffers: list[Tensor]) -> None:
    """Turn what was begun into directions once the base has moved: SGD's gradient, else displacement / lr."""
    here, lr = local_all(buffers), float(group["lr"])
    if not buffers:
        return
    if gradient_is_direction(base, group):
        grads = [p.grad.to_dense() if p.grad.is_sparse else p.grad for p in params if p.grad is not None]
        torch._foreach_copy_(here, local_all(grads))
    elif lr == 0:
        torch._foreach_zero_(here)
    else:
        torch._foreach_sub_(here, local_all(params))
        torch._foreach_div_(here, lr)


def moving(base: Optimizer, group: Group, state: State) -> tuple[list[Tensor], list[Tensor]]:
    """Return the parameters of a group that drift, and their directions."""
    params, directions = [], []
    otherwise = BUFFER if type(base) in BUFFERED else DIRECTION  # the options may have changed since the last sync step
    for p in group["params"]:
        param_state = state.get(p) or {}
        direction = param_state.get(DIRECTION, param_state.get(otherwise))
        if direction is not None and RESTING not in param_state:
            params.append(p)
            directions.append(direction)
    return params, directions


def ensure_gathered(group: Group, state: State) -> None:
    """Begin with zeros: checkpoint formats that load in place know only the names that are there."""
    if group["gradient"] != "sync" and group["period"] > 1:
        for p in group["params"]:
            if param_state := state.get(p):
                param_state.setdefault(GATHERED, torch.zeros_like(p))


@contextmanager
def gathered_gradients(groups: list[Group], state: State, now: int) -> Iterator[None]:
    """Put the mean or sum of a cycle's gradients in the place of the current ones for one step of the base."""
    replaced = []
    for group in groups:
        steps = now - group["last_sync"]
        for p in group["params"] if group["gradient"] != "sync" and steps > 1 else ():
            # The sum leaves the state meanwhile, since Adam takes an empty one for its first step.
            total = _total((state.get(p) or {}).pop(GATHERED, None), p.grad)
            if total is not None:
                replaced.append((p, p.grad))
                p.grad = total / (steps if group["gradient"] == "mean" else 1)
    try:
        yield
    finally:
        for p, grad in replaced:
            p.grad = grad
        for group in groups:
            ensure_gathered(group, state)


def _total(sums: Tensor | None, grad: Tensor | None) -> Tensor | None:
    """Add the last gradient; a missing one counts as zero, but a parameter that had none at all is skipped."""
    if sums is None:
        return grad
    if grad is None:
        return sums if any_nonzero(sums) else None
    return sums.add_(grad)
