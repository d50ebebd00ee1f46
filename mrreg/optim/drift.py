"""How a part moves between its gradients: along the direction that its base optimizer took at the sync step.

Once per cycle a base takes its ordinary step with the group's lr. The direction of that step is what drift repeats,
scaled with the lr of the moment. Plain SGD with momentum and LangevinSGD have it in their momentum buffer; plain SGD
without momentum, or with Nesterov's, has it in the gradient; for all others it is displacement / lr.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mrreg.distributed.sharding import is_sharded, local_all
from mrreg.optim.langevin import LangevinSGD

DIRECTION = "direction"  # one buffer per slow parameter, where the momentum buffer is not the direction
BUFFER = "momentum_buffer"
BUFFERED = (torch.optim.SGD, LangevinSGD)  # subclasses may do anything with their buffer
RESTING = "resting"  # set on a parameter that had no gradient at its last sync step

Group = dict[str, Any]
State = dict[Tensor, Any]
Finish = Callable[[], list[Tensor]]


class Held(NamedTuple):
    """A group that will be held after its sync step."""

    group: Group
    params: list[Tensor]  # those that move
    finish: Finish


def step_size(group: Group) -> float:
    """The group's lr as a number; torch reads a tensor lr in the same way where it scales a direction with it."""
    return float(group["lr"])


def has_buffer(base: torch.optim.Optimizer, group: Group) -> bool:
    """Whether the momentum buffer is the direction."""
    return type(base) in BUFFERED and group["momentum"] != 0 and not group.get("nesterov")


def key_of(base: torch.optim.Optimizer, states: Iterable[dict[str, Any]]) -> str:
    """Where the directions of a group's parameters are; its options may have changed since they were found."""
    return DIRECTION if type(base) not in BUFFERED or any(DIRECTION in own for own in states) else BUFFER


def measure(base: torch.optim.Optimizer, group: Group, params: list[Tensor], state: State) -> Finish:
    """Call before the base's step, and the result after it: the directions of that step, one tensor per parameter."""
    if not params:
        return list
    if has_buffer(base, group):
        return lambda: [state[p][BUFFER] for p in params]
    known = [state.get(p, {}).get(DIRECTION) for p in params]
    buffers = [torch.empty_like(p) if d is None else d for p, d in zip(params, known, strict=True)]
    if type(base) is torch.optim.SGD:
        return _force(group, params, buffers, state)
    return _displacement(group, params, buffers)


def _force(group: Group, params: list[Tensor], buffers: list[Tensor], state: State) -> Finish:
    """SGD without a buffer to share: the same operations as torch's, so the same bits at any lr, 0 included."""
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
    """Any other optimizer: what its step did, per unit of lr."""
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


def keep(params: list[Tensor], directions: list[Tensor], shared: bool, state: State) -> "Course":
    """Remember the directions until the next sync step; shared ones are the base's own buffers."""
    states = [state[p] for p in params]
    for own, direction in zip(states, directions, strict=True):
        own.pop(RESTING, None)
        if shared:
            own.pop(DIRECTION, None)
        else:
            own[DIRECTION] = direction
    return Course(BUFFER if shared else DIRECTION, params, states)


def rest(params: Iterable[Tensor], state: State) -> None:
    """Let parameters without a gradient rest until their next sync step."""
    for p in params:
        if own := state.get(p):  # without state there is nothing to move along, and Adam's first step needs it empty
            own.pop(DIRECTION, None)
            own[RESTING] = True


class Course:
    """The parameters of one group that drift, with their states: looked up once per cycle, not at every step."""

    def __init__(self, key: str, params: list[Tensor], states: list[dict[str, Any]]) -> None:
        self._key = key
        self._params = params
        self._states = states
        self._sharded = any(map(is_sharded, params))

    @classmethod
    def found(cls, base: torch.optim.Optimizer, group: Group, state: State) -> "Course":
        """The course that a state holds, after loading."""
        known = [(p, state.get(p) or {}) for p in group["params"]]
        key = key_of(base, [own for _, own in known])
        moving = [(p, own) for p, own in known if own.get(key) is not None and RESTING not in own]
        return cls(key, [p for p, _ in moving], [own for _, own in moving])

    def fits(self, state: State) -> bool:
        """Whether the states are still those of the optimizer; the user may have emptied or replaced them."""
        same = not self._params or state.get(self._params[0]) is self._states[0]
        return same and all(own.get(self._key) is not None for own in self._states)

    def directions(self) -> list[Tensor]:
        """One for each parameter."""
        return [own[self._key] for own in self._states]

    def advance(self, lr: float) -> None:
        """Move along the directions."""
        if self._params:
            params, directions = self._params, self.directions()
            if self._sharded:
                params, directions = local_all(params), local_all(directions)
            torch._foreach_add_(params, directions, alpha=-lr)
