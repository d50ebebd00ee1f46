"""Looks out for what would silently go wrong around a `Multirate`: cut-off gradients, unfit data parallelism."""

import gc
import weakref
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from mrreg.drift import Group
from mrreg.errors import wrong_moment

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


class ParallelWatch:
    """Refuses DistributedDataParallel where it would wait for gradients that never come, or never average them."""

    def __init__(self, where: str, params: Iterable[Tensor]) -> None:
        self._where = where
        self._early = weakref.WeakSet(_checked(where, set(params)))

    def check(self, params: Iterable[Tensor], off: bool) -> None:
        """Look again before the first step; a wrapper built while slow parts were off does not know them."""
        late = [wrapper for wrapper in _checked(self._where, set(params)) if wrapper not in self._early]
        if late and off:
            problem = (
                "DistributedDataParallel was built while slow parts had requires_grad=False and never averages them"
            )
            raise wrong_moment(
                self._where, problem, "Wrap the model before the optimizer is built and its state loaded."
            )


def _checked(where: str, params: set[Tensor]) -> list[nn.Module]:
    """The wrappers around some of the parameters; torch keeps no list of them, and the optimizer sees no module."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return []
    kind = nn.parallel.DistributedDataParallel
    wrappers = [each for each in gc.get_objects() if issubclass(type(each), kind)]
    ours = [each for each in wrappers if not params.isdisjoint(each.parameters())]
    for wrapper in ours:
        if wrapper.static_graph or not wrapper.find_unused_parameters:
            problem = "DistributedDataParallel waits for a gradient of every parameter, and slow ones mostly have none"
            remedy = "Build it with find_unused_parameters=True and without static_graph, or use fully_shard."
            raise wrong_moment(where, problem, remedy)
    return ours
