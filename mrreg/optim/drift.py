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

from mrreg.distributed.sharding import is_sharded, local_all
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
    """Tell if the base's momentum buffer is the direction, so that drift needs no memory."""
    return type(base) in BUFFERED and group["momentum"] != 0 and not group.get("nesterov")


def direction_key(base: torch.optim.Optimizer, states: Iterable[dict[str, Any]]) -> str:
    """Return the key of the directions in a state; the group's options may have changed since they were stored."""
    return DIRECTION if type(base) not in BUFFERED or any(DIRECTION in each for each in states) else BUFFER


def begin_direction(base: torch.optim.Optimizer, group: Group, params: list[Tensor], state: State) -> Finish:
    """Note before the base's step what the directions are computed from; the result gives them after it."""
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


def store(params: list[Tensor], directions: list[Tensor], shared: bool, state: State) -> "DriftDirections":
    """Keep the directions in the state until the next sync step; shared ones are the base's own buffers."""
    states = [state[p] for p in params]
    for param_state, direction in zip(states, directions, strict=True):
        param_state.pop(RESTING, None)
        if shared:
            param_state.pop(DIRECTION, None)
        else:
            param_state[DIRECTION] = direction
    return DriftDirections(BUFFER if shared else DIRECTION, params, states)


def mark_resting(params: Iterable[Tensor], state: State) -> None:
    """Let parameters without a gradient stand still until their next sync step."""
    for p in params:
        if param_state := state.get(p):  # Adam takes an empty state for its first step, so nothing is put into one
            param_state.pop(DIRECTION, None)
            param_state[RESTING] = True


class DriftDirections:
    """Parameters of one group that drift, with their states: looked up once per cycle instead of at every step."""

    def __init__(self, key: str, params: list[Tensor], states: list[dict[str, Any]]) -> None:
        self._key = key
        self._params = params
        self._states = states
        self._sharded = any(map(is_sharded, params))

    @classmethod
    def from_state(cls, base: torch.optim.Optimizer, group: Group, state: State) -> "DriftDirections":
        """Find the directions that a state holds, for example after loading."""
        known = [(p, state.get(p) or {}) for p in group["params"]]
        key = direction_key(base, [param_state for _, param_state in known])
        moving = [(p, own) for p, own in known if own.get(key) is not None and RESTING not in own]
        return cls(key, [p for p, _ in moving], [own for _, own in moving])

    def is_current(self, state: State) -> bool:
        """Tell if the states are still those of the optimizer; the user may have emptied or replaced them."""
        same = not self._params or state.get(self._params[0]) is self._states[0]
        return same and all(param_state.get(self._key) is not None for param_state in self._states)

    def directions(self) -> list[Tensor]:
        """Return the directions of the parameters that drift."""
        return [param_state[self._key] for param_state in self._states]

    def advance(self, lr: float) -> None:
        """Move along the directions."""
        if not self._params:
            return
        params, directions = self._params, self.directions()
        if self._sharded:
            params, directions = local_all(params), local_all(directions)
        torch._foreach_add_(params, directions, alpha=-lr)
