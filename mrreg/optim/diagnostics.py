"""Looks out for what would silently go wrong around a `Multirate`: cut-off gradients, unfit data parallelism."""

from torch import Tensor

from mrreg.optim.drift import Group

IDLE_CALLS = 3


def have_gradient(groups: list[Group]) -> bool:
    """Whether any parameter has a gradient."""
    for group in groups:  # no generators: this runs at every step, and the first parameter mostly has one
        for p in group["params"]:
            if p.grad is not None:
                return True
    return False


class GradientWatch:
    """Finds fast parameters that get a gradient only where slow ones do, in the first cycle of a training."""

    def __init__(self) -> None:
        self._missing: list[Tensor] | None = None
        self._seen_fast_step = False
        self._done = False
        self._idle = 0

    def complaint(self, groups: list[Group], due: list[Group]) -> str:
        """What is wrong at this step, once; mostly nothing."""
        self._idle = 0
        if self._done:
            return ""
        joint = len(due) == len(groups)
        if not joint and not have_gradient(due):
            return self._told("no parameter of the parts that are due got a gradient at this step")
        if joint and self._seen_fast_step and self._missing is not None:
            count, self._missing = len(self._missing), None
            text = self._told(f"{count} parameters of the fast part got no gradient between two sync steps")
            return text if count else ""
        if joint:
            fast = [p for group in groups if group["period"] == 1 for p in group["params"]]
            self._missing = [p for p in fast if p.grad is not None]
        elif self._missing is not None:
            self._seen_fast_step = True
            self._missing = [p for p in self._missing if p.grad is None]
        return ""

    def idle_complaint(self, groups: list[Group]) -> str:
        """The same for a call without any gradient: one is no step, but many leave slow parts off for ever."""
        off = len({group["next_sync"] for group in groups}) > 1
        self._idle += off
        if self._idle < IDLE_CALLS or self._done:
            return ""
        return self._told(f"no parameter got a gradient at {IDLE_CALLS} calls in a row, and slow parts wait")

    def _told(self, text: str) -> str:
        self._done = True
        return text
