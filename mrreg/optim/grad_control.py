"""Control over which parameters require a gradient, and when other code can see it."""

import contextlib
import warnings
from collections.abc import Iterator

from torch import nn
from torch._compile import _disable_dynamo
from torch.optim import Optimizer

from mrreg.errors import NoEffectWarning
from mrreg.optim.diagnostics import has_gradient
from mrreg.optim.drift import Group
from mrreg.optim.forward_hook import hook_forwards
from mrreg.optim.requires_grad import RequiresGradSwitch, watch_others
from mrreg.optim.sync_clock import is_due


class GradControl:
    """Lets parameters require a gradient only where their part needs one at the next step.

    With a model this holds from a training forward to the end of its step. In between flags are at rest: whatever
    other code reads or writes (averages, checkpoints, copies, other optimizers) finds the flags of the user. Without a
    model, or where its forwards cannot be seen, it holds between steps too, where other code sees it.
    """

    def __init__(
        self, optimizer: Optimizer, switch: RequiresGradSwitch, groups: list[Group], model: nn.Module | None
    ) -> None:
        self.switch = switch
        self._where = f"{type(optimizer).__name__}.step"
        self._has_warned = False
        self._groups = groups
        self._waiting: list[int] = []  # indices of the groups that get no gradient at the next step
        self._enabled = True  # flags may be switched off
        self._seen = self._seen_training = False  # forwards since the last step
        self._opens_in_eval = False
        self._had_gradient = False
        switch.restore_at_end_of(optimizer)
        watch_others()
        if model is not None:
            switch.at_rest = True
            hook_forwards(optimizer, model, set(switch.switched(groups)), self)
        self.schedule(groups)

    @property
    def mode(self) -> str:
        """Say where the flags are between steps."""
        return "at rest" if self.switch.at_rest else "visible"

    def schedule(self, groups: list[Group]) -> None:
        """Prepare for the next step."""
        self._groups, self._enabled = groups, True
        self._waiting = [i for i, group in enumerate(groups) if group["gradient"] == "sync" and not is_due(group)]
        if not self.switch.at_rest:
            self.switch.show(but=self._waiting)
            self.switch.hide(self._waiting)

    @_disable_dynamo
    def enter(self, training: bool) -> None:
        """Switch off, at a forward, the parameters that the coming backward pass must not reach."""
        self._seen = True
        self._seen_training |= training
        if not self._waiting or not self._enabled or not (training or self._opens_in_eval):
            return
        if not self.switch.at_rest or self.switch.is_hiding:  # at every forward but the first of a step
            return
        self._had_gradient = self._has_due_gradient()
        self.switch.show()
        self.switch.hide(self._waiting)

    def _has_due_gradient(self) -> bool:
        return has_gradient([group for i, group in enumerate(self._groups) if i not in self._waiting])

    def before_step(self, groups: list[Group]) -> None:
        """Check that flags were off where they had to be; if no forward was seen, they are visible from now on."""
        seen = self._seen
        self._opens_in_eval |= seen and not self._seen_training  # as with frozen BatchNorm
        self._seen = self._seen_training = False
        if self.switch.at_rest:
            switches = any(group["period"] > 1 and group["gradient"] == "sync" for group in groups)
            if not seen and switches:
                self.switch.show()
                self.switch.at_rest = False  # the hooks stay, since compiled graphs depend on them
                self._warn(
                    "no forward of the model was seen before this step, as happens when it is compiled in place or its "
                    "inner parts are called by hand; from now on slow parameters have requires_grad=False between steps"
                )
        elif not self._has_warned and (count := self.switch.count_switched_back()):
            self._warn(
                f"requires_grad of {count} parameters was switched on between two gradients of their part, and "
                "computing these gradients cost time for nothing; give the optimizer the model to avoid this"
            )

    def after_step(self) -> None:
        """Give the flags back, where other code must not see them."""
        if self.switch.at_rest:
            self.switch.show()

    def before_zero_grad(self) -> None:
        """Give the flags back after a step that was skipped, as a gradient scaler does.

        Where `zero_grad` is called between forward and backward, there are no new gradients of parts that are due.
        """
        if self.switch.at_rest and self.switch.is_hiding and not self._had_gradient and self._has_due_gradient():
            self.switch.show()

    def close(self) -> None:
        """Give the flags back and leave them alone until the next step."""
        self._enabled = False
        self.switch.show()

    @contextlib.contextmanager
    def all_trainable(self) -> Iterator[None]:
        """Give the flags back inside a with block."""
        enabled, was_hiding = self._enabled, self.switch.is_hiding
        self.close()
        try:
            yield
        finally:
            self._enabled = enabled
            if was_hiding:
                self.switch.hide(self._waiting)

    def _warn(self, problem: str) -> None:
        self._has_warned = True
        warnings.warn(f"{self._where}: {problem}.", NoEffectWarning, stacklevel=7)
