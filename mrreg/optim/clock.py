"""Clock of a `Multirate`: whole numbers in every parameter group, which every way of saving keeps.

"clock" counts completed steps; "last_sync" and "next_sync" are the steps of a group's last and next gradient; "period"
is the distance that the user wants, read at sync steps, and "initial_period" the one at construction; "phase" is the
step of the first gradient.
"""

from typing import Any

from torch import Tensor

from mrreg.distributed.sharding import any_nonzero

Group = dict[str, Any]

INITIAL_CLOCK = {"clock": 0, "last_sync": -1, "next_sync": 0}


def is_due(group: Group) -> bool:
    """Return True if a group gets a gradient at the next step."""
    return bool(group["clock"] == group["next_sync"])


def next_syncs(groups: list[Group], due: list[Group], now: int) -> dict[int, int]:
    """Return the next sync step of each group that is due, by the group's id.

    It is one period on, but never past a sync step of a slower part in phase with it: also while periods change, that
    part's sync steps are sync steps of all finer ones.
    """
    ends, waiting = {}, {(g["period"], g["phase"], g["next_sync"]) for g in groups if g["next_sync"] > now}
    for group in due:
        own, phase = group["period"], group["phase"]
        slower = [sync for period, other, sync in waiting if period >= own and (other - phase) % own == 0]
        ends[id(group)] = min([now + own, *slower])
    return ends


def has_gradient(groups: list[Group]) -> bool:
    """Return True if any parameter has a gradient."""
    return any(p.grad is not None for group in groups for p in group["params"])


def asks_for_state_only(groups: list[Group]) -> bool:
    """Return True if every lr and every gradient is zero: torch's distributed checkpoints step so to create state."""
    grads = (p.grad for group in groups for p in group["params"] if p.grad is not None)
    return all(is_zero(group["lr"]) for group in groups) and not any(map(any_nonzero, grads))


def is_zero(lr: float | Tensor) -> bool:
    """Compare with zero without waiting for another device; torch puts its zero on the CPU."""
    return (lr.device.type == "cpu" and not lr.any()) if isinstance(lr, Tensor) else lr == 0
