"""Control over which parameters require a gradient, and when other code can see it."""

import contextlib
import warnings
import weakref
from collections.abc import Callable, Iterator

from torch import nn
from torch.optim import Optimizer

from mrreg.errors import NoEffectWarning
from mrreg.optim.drift import Group
from mrreg.optim.requires_grad import RequiresGradSwitch, watch_others
from mrreg.optim.sync_clock import is_due
from mrreg.optim.training_window import TrainingWindow


class GradControl:
    """Lets parameters require a gradient just where their part needs one at the next step.

    With a model this holds from a training forward to the end of its step, and flags are at rest in between. Without
    one, or where its forwards cannot be seen, it holds between steps too, where other code sees it.
    """

    def __init__(
        self, optimizer: Optimizer, switch: RequiresGradSwitch, groups: list[Group], model: nn.Module | None
    ) -> None:
        self._where = f"{type(optimizer).__name__}.step"
        self._has_warned = False
        self.switch = switch
        self._window = None if model is None else TrainingWindow(model, switch, groups)
        handles = [] if self._window is None else self._window.handles
        undo: list[Callable[[], None]] = [switch.restorer(), *(handle.remove for handle in handles)]
        for each in undo:
            weakref.finalize(optimizer, each).atexit = False
        watch_others()
        self.schedule(groups)

    @property
    def mode(self) -> str:
        """Say where the flags are between steps."""
        return "visible" if self._window is None else "at rest"

    def schedule(self, groups: list[Group]) -> None:
        """Prepare for the next step."""
        waiting = [i for i, group in enumerate(groups) if group["gradient"] == "sync" and not is_due(group)]
        if self._window is not None:
            self._window.schedule(groups, waiting)
            return
        for index in range(len(groups)):
            self.switch.set(index, index not in waiting)

    def before_step(self, groups: list[Group]) -> None:
        """Find out if the flags were off where they had to be; without a forward seen, they stay visible for good."""
        if self._window is not None:
            switches = any(group["period"] > 1 and group["gradient"] == "sync" for group in groups)
            if not self._window.has_seen_forward() and switches:
                self._window.end()
                self._window = None
                self._warn(
                    "no forward of the model was seen before this step, as where it is compiled or its inner parts "
                    "are called by hand; from now on slow parameters have requires_grad=False between steps"
                )
        elif not self._has_warned and (count := self.switch.count_switched_back()):
            self._warn(
                f"requires_grad of {count} parameters was switched on between two gradients of their part, so that "
                "these gradients cost time for nothing; give the optimizer the model, and such code does no harm"
            )

    def after_step(self) -> None:
        """Give the flags back, where other code must not see them."""
        if self._window is not None:
            self._window.leave()

    def before_zero_grad(self) -> None:
        """Give the flags back after a step that was skipped."""
        if self._window is not None:
            self._window.before_zero_grad()

    def close(self) -> None:
        """Give the flags back until the next step."""
        if self._window is not None:
            self._window.disable()
        else:
            self.switch.restore()

    @contextlib.contextmanager
    def all_trainable(self, groups: list[Group]) -> Iterator[None]:
        """Give the flags back inside a with block."""
        if self._window is not None:
            with self._window.suspended():
                yield
            return
        self.switch.restore()
        try:
            yield
        finally:
            self.schedule(groups)

    def _warn(self, problem: str) -> None:
        self._has_warned = True
        warnings.warn(f"{self._where}: {problem}.", NoEffectWarning, stacklevel=7)
