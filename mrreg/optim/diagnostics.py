"""Mistakes around a `Multirate` that would go unnoticed, each named once."""

from torch import Tensor

from mrreg.errors import warn
from mrreg.optim.clock import Group

REENTRANT = (
    "Where layers run under activation checkpointing with use_reentrant=True, a frozen input cuts off all gradients: "
    "use use_reentrant=False."
)
IDLE_CALLS = 3  # calls of `step` in a row without any gradient before it is reported


class Diagnostics:
    """Finds schedules that set the lr of one group only, and fast gradients that are there at joint steps alone."""

    def __init__(self, groups: list[Group]) -> None:
        self._fast: list[Tensor] = []  # that had a gradient at the first joint step
        self._missing: list[Tensor] | None = None  # of these, the ones without a gradient ever since
        self._idle = 0
        self.loaded(groups)

    def loaded(self, groups: list[Group]) -> None:
        """Take the rates that are there now for those to begin with."""
        rates = [group["lr"] for group in groups]
        same = not any(isinstance(lr, Tensor) for lr in rates) and len(set(rates)) == 1 < len(rates)
        self._lr = rates[0] if same else None

    def step(self, where: str, groups: list[Group], due: list[Group]) -> None:
        """Look at a step."""
        self._idle = 0
        if self._lr is not None and groups[0]["lr"] != self._lr:
            # one of torch's schedulers, which sets "initial_lr", takes care of every group
            if all(group["lr"] == self._lr and "initial_lr" not in group for group in groups[1:]):
                problem = "the lr of the first parameter group was changed and that of all others was not"
                warn(f"{where}: {problem}: set it in every group.")
            self._lr = None
        if len(due) < len(groups):
            candidates = self._fast if self._missing is None else self._missing
            self._missing = [p for p in candidates if p.grad is None and p.requires_grad]
        elif self._missing is None:
            fast = [p for group in groups if group["period"] == 1 for p in group["params"]]
            self._fast = [p for p in fast if p.grad is not None]
        elif self._missing:
            count, self._missing = len(self._missing), []
            warn(f"{where}: {count} parameters of the fast part got no gradient between two sync steps. {REENTRANT}")

    def idle_call(self, where: str, groups: list[Group]) -> None:
        """Look at a call without any gradient: one is no step, but many leave slow parts switched off forever."""
        self._idle += len({group["next_sync"] for group in groups}) > 1
        if self._idle == IDLE_CALLS and self._missing != []:
            self._missing = []
            problem = f"no parameter got a gradient at {IDLE_CALLS} calls in a row, and slow parts are waiting"
            warn(f"{where}: {problem}. {REENTRANT}")
