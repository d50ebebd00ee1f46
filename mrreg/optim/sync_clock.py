"""The clock of a `Multirate`: whole numbers in every parameter group, which every way of saving keeps.

"clock" counts completed steps; "last_sync" and "next_sync" are the steps at which a group got its last and gets its
next gradient; "period" is the user's wish for the distance, read at sync steps, "initial_period" the one at
construction; "moving" counts the parameters that have a direction to drift along.
"""

from torch import Tensor

from mrreg.distributed.sharding import any_nonzero
from mrreg.optim.drift import Group

AT_START = {"clock": 0, "last_sync": -1, "next_sync": 0, "moving": 0}


def next_syncs(groups: list[Group], due: list[Group], now: int) -> dict[int, int]:
    """The next sync step of each group that is due, by the group's id.

    One period on, but never past a sync step of a slower part: while periods change, too, a slower part's sync steps
    are sync steps of all finer ones.
    """
    ends = {}
    for group in due:
        period = group["period"]
        end = now + period
        if period > 1:
            slower = [g["next_sync"] for g in groups if g["period"] >= period and g["next_sync"] > now]
            end = min([end, *slower])
        ends[id(group)] = end
    return ends


def position(group: Group) -> str:
    """Where a group is in its cycle, in words."""
    if group["clock"] == group["next_sync"]:
        return "due"
    return f"{group['clock'] - group['last_sync']} of {group['next_sync'] - group['last_sync']}"


def is_at_rest(groups: list[Group]) -> bool:
    """Whether every learning rate and every gradient is zero: torch's distributed checkpointing wants only state."""
    for group in groups:
        if not _is_zero(group["lr"]):
            return False
    grads = [p.grad for group in groups for p in group["params"] if p.grad is not None]
    return not any(map(any_nonzero, grads))


def _is_zero(lr: float | Tensor) -> bool:
    """Whether a learning rate is zero; one on another device is not waited for, torch puts its zero on the CPU."""
    return (lr.device.type == "cpu" and not lr.any()) if isinstance(lr, Tensor) else lr == 0
