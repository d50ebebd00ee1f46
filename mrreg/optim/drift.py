"""Motion of a slow part between its gradients.

At a sync step the base optimizer takes its ordinary step with the group's lr. Until the next one, drift repeats the
direction of that step, scaled with the lr of the moment. The direction is the momentum buffer of SGD and LangevinSGD;
the gradient, with Nesterov's correction, of SGD where no buffer equals it; and displacement / lr for all others.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mrreg.distributed.sharding import local_all
from mrreg.optim.langevin import LangevinSGD

DIRECTION = "direction"  # one buffer per slow parameter, where the momentum buffer is not the direction
BUFFER = "momentum_buffer"
BUFFERED = (torch.optim.SGD, LangevinSGD)  # exact types: subclasses may do anything with their buffer
RESTING = "resting"  # set on a parameter that had no gradient at its last sync step

Group = dict[str, Any]
State = defaultdict[Tensor, Any]
Finish = Callable[[], list[Tensor]]


class PendingDrift(NamedTuple):
    """A group in the middle of its sync step; `finish` returns the directions once the base has moved."""

    group: Group
    params: list[Tensor]  # those with a gradient
    finish: Finish


def step_size(group: Group) -> float:
    """Return the group's lr as a number; torch reads a tensor lr in the same way where it scales a direction."""
    return float(group["lr"])


def buffer_is_direction(base: torch.optim.Optimizer, group: Group) -> bool:
    """Return True if the base's momentum buffer is the direction, so that drift needs no memory."""
    return type(base) in BUFFERED and group["momentum"] != 0 and not group.get("nesterov")


def direction_of(base: torch.optim.Optimizer, param_state: dict[str, Any]) -> Tensor | None:
    """Return a parameter's direction; the group's options may have changed since it was stored."""
    direction: Tensor | None = param_state.get(DIRECTION)
    if DIRECTION not in param_state and type(base) in BUFFERED:
        direction = param_state.get(BUFFER)
    return direction


def begin_direction(base: torch.optim.Optimizer, group: Group, params: list[Tensor], state: State) -> Finish:
    """Note before the base's step what the directions are computed from; the returned function gives them after it."""
    if not params:
        return list
    if buffer_is_direction(base, group):
        return lambda: [state[p][BUFFER] for p in params]
    known = [state.get(p, {}).get(DIRECTION) for p in params]
    buffers = [torch.empty_like(p) if d is None else d for p, d in zip(params, known, strict=True)]
    if type(base) is torch.optim.SGD:
        return _sgd_direction(group, params, buffers, state)
    return _displacement(group, params, buffers)


def _sgd_direction(group: Group, params: list[Tensor], buffers: list[Tensor], state: State) -> Finish:
    """Repeat the operations of torch's SGD on the gradient: the same bits at any lr, 0 included."""
    grads = [p.grad.to_dense() if p.grad.is_sparse else p.grad for p in params if p.grad is not None]
    here = local_all(buffers)
    torch._foreach_copy_(here, local_all(grads))
    if group["maximize"]:
        torch._foreach_neg_(here)
    if group["weight_decay"] != 0:
        torch._foreach_add_(here, local_all(params), alpha=group["weight_decay"])

    def finish() -> list[Tensor]:
        if group["nesterov"]:
            momenta = local_all([state[p][BUFFER] for p in params])
            torch._foreach_add_(here, momenta, alpha=group["momentum"])
        return buffers

    return finish


def _displacement(group: Group, params: list[Tensor], buffers: list[Tensor]) -> Finish:
    """Measure how far the base's step moves each parameter per unit of lr."""
    here, moved = local_all(buffers), local_all(params)
    torch._foreach_copy_(here, moved)

    def finish() -> list[Tensor]:
        lr = step_size(group)
        if lr == 0:
            torch._foreach_zero_(here)
        else:
            torch._foreach_sub_(here, moved)
            torch._foreach_div_(here, lr)
        return buffers

    return finish


def store(params: list[Tensor], directions: list[Tensor], shared: bool, state: State) -> None:
    """Keep the directions in the state until the next sync step; shared ones are the base's own buffers."""
    for p, direction in zip(params, directions, strict=True):
        param_state = state[p]
        param_state.pop(RESTING, None)
        if shared:
            param_state.pop(DIRECTION, None)
        else:
            param_state[DIRECTION] = direction


def mark_resting(params: Iterable[Tensor], state: State) -> None:
    """Let parameters without a gradient stand still until their next sync step."""
    for p in params:
        if param_state := state.get(p):  # Adam takes an empty state for its first step, so nothing is put into one
            param_state.pop(DIRECTION, None)
            param_state[RESTING] = True


def moving(base: torch.optim.Optimizer, group: Group, state: State) -> tuple[list[Tensor], list[Tensor]]:
    """Return the parameters of a group that drift, and their directions."""
    params, directions = [], []
    for p in group["params"]:
        param_state = state.get(p)
        if param_state and RESTING not in param_state:
            direction = direction_of(base, param_state)
            if direction is not None:
                params.append(p)
                directions.append(direction)
    return params, directions


def advance_along(base: torch.optim.Optimizer, group: Group, state: State) -> None:
    """Move a group along its directions by one step."""
    params, directions = moving(base, group, state)
    if params:
        torch._foreach_add_(local_all(params), local_all(directions), alpha=-step_size(group))
