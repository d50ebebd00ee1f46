"""Clocks after uneven inputs: under `DistributedDataParallel.join` some ranks make more steps than others."""

import weakref
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch import nn

from mrreg.distributed.checks import DDP
from mrreg.errors import invalid_state

Clock = Callable[[Any], int]


class FinalSync:
    """Stands in for what a wrapper calls once on each rank when a join ends, and compares the clocks of the ranks."""

    def __init__(self, wrapper: DDP) -> None:
        self._wrapper = wrapper
        self._original: Any = wrapper._sync_final_model
        self.clocks: weakref.WeakKeyDictionary[Any, tuple[str, Clock]] = weakref.WeakKeyDictionary()

    def __call__(self, is_last_joiner: bool) -> None:
        """Sync the model as torch does, and raise on every rank if clocks differ."""
        self._original(is_last_joiner)
        ours = sorted((where, clock(owner)) for owner, (where, clock) in self.clocks.items())
        found: list[Any] = [None] * dist.get_world_size(self._wrapper.process_group)
        dist.all_gather_object(found, ", ".join(str(clock) for _, clock in ours), self._wrapper.process_group)
        if ours and len(set(found)) > 1:
            steps = ", ".join(f"{clocks} on rank {rank}" for rank, clocks in enumerate(found))
            problem = f"after uneven inputs the ranks have made different numbers of steps: {steps}"
            remedy = (
                "They would train different parts from now on. Give all ranks as many batches (drop_last, Accelerate's "
                "even_batches), or end the epoch with the first that has none: join(throw_on_early_termination=True)."
            )
            raise invalid_state(" and ".join(sorted({where for where, _ in ours})), problem, remedy)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self._wrapper, "_sync_final_model")  # a copy of the wrapper has its own


def compare_after_join(model: nn.Module, owner: object, where: str, clock: Clock) -> None:
    """Have the ranks compare a clock, a function of its owner, whenever a join of a wrapper in the model ends."""
    for wrapper in model.modules():
        if isinstance(wrapper, DDP):
            final: FinalSync = vars(wrapper).setdefault("_sync_final_model", FinalSync(wrapper))
            final.clocks[owner] = where, clock
