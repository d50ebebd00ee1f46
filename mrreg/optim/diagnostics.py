"""Detection of gradients that are missing between two sync steps, as reentrant checkpointing loses them."""

from torch import Tensor

from mrreg.optim.clock import Group

REENTRANT = (
    ". Where layers run under activation checkpointing with use_reentrant=True, a frozen input cuts off all gradients: "
    "use use_reentrant=False"
)
IDLE_CALLS = 3  # calls of `step` in a row without any gradient before it is reported


class UnscheduledGroupDetector:
    """Finds schedules written by hand that set the lr of the first group only, though all groups began with one lr."""

    def __init__(self, groups: list[Group]) -> None:
        rates = [group["lr"] for group in groups]
        same = not any(isinstance(lr, Tensor) for lr in rates) and len(set(rates)) == 1 < len(rates)
        self._lr = rates[0] if same else None

    def check(self, groups: list[Group]) -> str:
        """Return the problem once; one of torch's schedulers, which sets "initial_lr", takes care of every group."""
        if self._lr is None or groups[0]["lr"] == self._lr:
            return ""
        changed = [group["lr"] != self._lr or "initial_lr" in group for group in groups]
        self._lr = None
        if any(changed[1:]):
            return ""
        return "the lr of the first parameter group was changed and that of all others was not: set it in every group"


def has_gradient(groups: list[Group]) -> bool:
    """Return True if any parameter has a gradient."""
    for group in groups:  # no generators: this runs at every step, and the first parameter mostly has one
        for p in group["params"]:
            if p.grad is not None:
                return True
    return False


class MissingGradientDetector:
    """Finds fast parameters that get a gradient only where slow ones do, in the first cycle of a training."""

    def __init__(self) -> None:
        self._missing: list[Tensor] | None = None
        self._seen_fast_step = False
        self._reported = False
        self._idle = 0

    def check_step(self, groups: list[Group], due: list[Group]) -> str:
        """Return the problem of this step the first time there is one, else nothing."""
        self._idle = 0
        if self._reported:
            return ""
        joint = len(due) == len(groups)
        if not joint and not has_gradient(due):
            return self._report("no parameter of the parts that are due got a gradient at this step")
        if joint and self._seen_fast_step and self._missing is not None:
            count, self._missing = len(self._missing), None
            text = self._report(f"{count} parameters of the fast part got no gradient between two sync steps")
            return text if count else ""
        if joint:
            fast = [p for group in groups if group["period"] == 1 for p in group["params"]]
            self._missing = [p for p in fast if p.grad is not None]
        elif self._missing is not None:
            self._seen_fast_step = True
            self._missing = [p for p in self._missing if p.grad is None]
        return ""

    def check_idle_call(self, groups: list[Group]) -> str:
        """Report calls without any gradient: one is no step, but many leave slow parts switched off forever."""
        waiting = len({group["next_sync"] for group in groups}) > 1
        self._idle += waiting
        if self._idle < IDLE_CALLS or self._reported:
            return ""
        return self._report(f"no parameter got a gradient at {IDLE_CALLS} calls in a row, and slow parts are waiting")

    def _report(self, text: str) -> str:
        self._reported = True
        return text and text + REENTRANT
