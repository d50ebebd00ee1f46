"""`requires_grad` at rest: slow parameters are without it only from a training forward to the end of the step.

Whatever other code reads or writes between two steps (averages, checkpoints, copies, other optimizers) finds the flags
of the user. A model is needed for that, since only its forward says when a step begins.
"""

import contextlib
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo

from mrreg.errors import invalid_argument
from mrreg.optim.diagnostics import has_gradient
from mrreg.optim.drift import Group
from mrreg.optim.requires_grad import RequiresGradSwitch


class TrainingWindow:
    """Time from a training forward to the end of its step, in which parameters that are not due are switched off."""

    def __init__(self, model: nn.Module, switch: RequiresGradSwitch, groups: list[Group]) -> None:
        self._switch = switch
        switch.restore()  # what an older optimizer has switched off
        switch.at_rest = True
        self._groups = groups
        self._waiting: list[int] = []  # indices of the groups that get no gradient at the next step
        self._enabled = True
        self._seen = self._seen_training = False  # forwards since the last step
        self._opens_in_eval = False
        self._had_gradient = False
        hook = ForwardHook(self, model)
        modules = _hooked_modules(model, set(switch.switched(groups)))
        self.handles = [module.register_forward_pre_hook(hook, prepend=True) for module in modules]

    def schedule(self, groups: list[Group], waiting: list[int]) -> None:
        """Note the groups, and those that are not due, for the next step."""
        self._groups, self._waiting, self._enabled = groups, waiting, True

    @_disable_dynamo
    def enter(self, training: bool) -> None:
        """Switch off the parameters that the coming backward pass must not reach."""
        self._seen = True
        self._seen_training |= training
        if not self._waiting or not self._enabled or not (training or self._opens_in_eval):
            return
        if self._switch.is_hiding:  # at every forward but the first of a step
            return
        self._had_gradient = self._has_due_gradient()
        self._switch.hide_gradients(self._waiting)

    def _has_due_gradient(self) -> bool:
        return has_gradient([group for i, group in enumerate(self._groups) if i not in self._waiting])

    def has_seen_forward(self) -> bool:
        """Tell once per step if its forward called a hook, and learn from it how this model is trained."""
        seen = self._seen
        self._opens_in_eval |= seen and not self._seen_training  # as with frozen BatchNorm
        self._seen = self._seen_training = False
        return seen

    def leave(self) -> None:
        """Give the flags back."""
        self._switch.restore()

    def before_zero_grad(self) -> None:
        """End the window of a step that was skipped, as a gradient scaler does.

        Others call `zero_grad` between forward and backward; there the gradients that are due are older, or missing.
        """
        if self._switch.is_hiding and not self._had_gradient and self._has_due_gradient():
            self.leave()

    def disable(self) -> None:
        """Give the flags back and leave them alone until the next step."""
        self._enabled = False
        self.leave()

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Leave the flags alone inside a with block."""
        enabled, was_open = self._enabled, self._switch.is_hiding
        self.disable()
        try:
            yield
        finally:
            self._enabled = enabled
            if was_open:
                self._switch.hide_gradients(self._waiting)

    def end(self) -> None:
        """Give up; the hooks stay, since compiled graphs depend on them, and do nothing once the window is gone."""
        self.leave()
        self._switch.at_rest = False


class ForwardHook:
    """Tells a window of training forwards of a model; keeps neither of them alive."""

    def __init__(self, window: TrainingWindow, root: nn.Module) -> None:
        self._window = weakref.ref(window)
        self._root = weakref.ref(root)
        # A compiled model runs its hooks outside of the graph, but would compile this one as a function of its own, in
        # which is_compiling() is always true. torch.optim has imported torch._dynamo by now.
        from torch._dynamo.eval_frame import skip_code

        skip_code(ForwardHook.__call__.__code__)

    def __call__(self, module: nn.Module, _: Any) -> None:
        """Enter the window, unless no backward pass of this process can follow."""
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():  # a hook inside a graph would break it
            return
        if torch._C._functorch.peek_interpreter_stack() is not None or getattr(module, "_is_replica", False):
            return
        window, root = self._window(), self._root()
        if window is not None and root is not None:
            window.enter(root.training)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle as something that takes any arguments, does nothing, and needs no mrreg to be loaded."""
        return getattr, (contextlib.nullcontext(), "__exit__")


def check_model(where: str, model: object, slow: Iterable[Tensor]) -> nn.Module:
    """Refuse a model whose forwards do not tell about all slow parameters."""
    if not isinstance(model, nn.Module):
        raise invalid_argument(TypeError, where, "model", "an nn.Module", type(model).__name__)
    known = set(model.parameters())
    if missing := [p for p in slow if p not in known]:
        rule = "the module that holds all slow parameters"
        raise invalid_argument(
            ValueError, where, "model", rule, f"one without {len(missing)} of them", "Give their common parent."
        )
    return model


def _hooked_modules(model: nn.Module, slow: set[Tensor]) -> Iterator[nn.Module]:
    """Yield the model and its direct children with slow parameters, which trainers call as `self.net(x)`."""
    yield model
    children = list(model.children())
    while children:
        child = children.pop()
        if type(child) in (nn.ModuleList, nn.ModuleDict):  # never called themselves
            children += child.children()
        elif not slow.isdisjoint(child.parameters()):
            yield child
