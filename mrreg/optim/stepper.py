"""One base optimizer of a `Multirate` at work: its step at sync steps, and what its groups do in between."""

import torch
from torch.optim import Optimizer

from mrreg.distributed.sharding import local_all
from mrreg.optim.accumulation import accumulate, accumulated_gradients, ensure_accumulators
from mrreg.optim.base_step import create_state, state_for_bases, step_groups, unwrapped_step
from mrreg.optim.drift import (
    Group,
    PendingDrift,
    State,
    advance_along,
    begin_direction,
    buffer_is_direction,
    mark_resting,
    step_size,
    store,
)
from mrreg.optim.sync_clock import cycle_length


class Stepper:
    """Steps a base on the groups that are due and moves the others along their directions."""

    def __init__(self, base: Optimizer, state: State, drift: bool) -> None:
        base.state = state  # one source of truth for all bases
        self.base = base
        self.step = unwrapped_step(base)
        self._drift = drift

    def create_state(self, state: State) -> None:
        """Create state where parameters have a gradient, and move nothing."""
        create_state(self.base, self.step, state, self._drift)
        for group in self.base.param_groups:
            ensure_accumulators(group, state)

    def reload(self, groups: list[Group], state: State) -> None:
        """Take the groups and the state of a load."""
        self.base.__setstate__({"state": state_for_bases(state), "param_groups": groups})
        self.base.state = state

    def advance(self, state: State, ends: dict[int, int], now: int) -> None:
        """Move all groups by one step; `ends` has the next sync step of those that are due."""
        rates = [(group, group["lr"]) for group in self.base.param_groups if group["slow_lr"] == "per_gradient"]
        for group, lr in rates:  # for this step only, so that schedules find in "lr" what they have set
            group["lr"] = lr / (ends[id(group)] - now if id(group) in ends else cycle_length(group))
        try:
            self._advance(state, ends, now)
        finally:
            for group, lr in rates:
                group["lr"] = lr

    def _advance(self, state: State, ends: dict[int, int], now: int) -> None:
        due = [group for group in self.base.param_groups if group["next_sync"] == now]
        for group in self.base.param_groups:
            if group["next_sync"] != now:
                self._advance_between(group, state)
        if due:
            self.base.state = state  # which the user may have replaced
            self._sync(due, state, ends, now)

    def _sync(self, groups: list[Group], state: State, ends: dict[int, int], now: int) -> None:
        """Let the base step on the groups that are due, and keep the directions of those that will be held."""
        pending: list[PendingDrift] = []

        def prepare() -> None:
            pending.extend(self._begin(group, state) for group in groups if ends[id(group)] > now + 1)

        with accumulated_gradients(groups, state, now):
            step_groups(self.base, self.step, groups, prepare)
        for group, params, finish in pending:
            if self._drift:
                store(params, finish(), buffer_is_direction(self.base, group), state)
            elif params:
                rest_of_cycle = (now + 1 - ends[id(group)]) * step_size(group)
                torch._foreach_add_(local_all(params), local_all(finish()), alpha=rest_of_cycle)

    def _begin(self, group: Group, state: State) -> PendingDrift:
        """Note before the base's step what the directions of a group are computed from."""
        params = [p for p in group["params"] if p.grad is not None]
        if self._drift:
            group["moving"] = len(params)
            if len(params) < len(group["params"]):
                mark_resting([p for p in group["params"] if p.grad is None], state)
        return PendingDrift(group, params, begin_direction(self.base, group, params, state))

    def _advance_between(self, group: Group, state: State) -> None:
        """Move a group that is not due, and add its gradients up where they count."""
        if self._drift:
            advance_along(self.base, group, state)
        if group["gradient"] != "sync":
            accumulate(group, state)
