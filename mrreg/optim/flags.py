"""`requires_grad` of parameters that are not due: off where their gradient would be computed for nothing.

With a model it is off from a training forward to the end of its step, so that whatever other code reads or writes in
between (averages, checkpoints, copies, other optimizers) finds the flags of the user: they are "at rest". Without one,
or where its forwards cannot be seen, it is off from one step to the next, and "visible".

Only what is on is switched off, and only that is switched on again: what the user froze stays frozen.
"""

import contextlib
import functools
import warnings
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from mrreg.errors import NoEffectWarning, invalid_argument
from mrreg.optim.clock import Group, is_due

_living: "weakref.WeakSet[Flags]" = weakref.WeakSet()


def is_switched(group: Group) -> bool:
    """Return True if the parameters of a group are without a gradient between its sync steps."""
    return bool(group["period"] > 1 and group["gradient"] == "sync")


class Flags:
    """Switches `requires_grad` of the parameters of one optimizer; those of older ones let go of what it takes.

    Args:
        where: The optimizer, for messages.
        groups: Its groups.
        model: Whose forwards begin a step; None makes flags visible.
        off: In a copy of an optimizer, the parameters that were off in the original.
    """

    def __init__(self, where: str, groups: list[Group], model: nn.Module | None, off: Iterable[Tensor] = ()) -> None:
        self._where = where
        self._ours = {p for group in groups for p in group["params"]}
        for older in list(_living):
            older.let_go(self._ours)
        self.at_rest = model is not None
        self._off = set(off)
        self._waiting: list[Tensor] = []  # of parts that are not due at the next step
        self._enabled = True
        self._seen = self._seen_training = self._opens_in_eval = False  # forwards since the last step
        self._has_warned = False
        self._hooks = [] if model is None else hook_forwards(self, model, set(self.switched(groups)))
        _living.add(self)
        _watch_other_optimizers()
        self.schedule(groups)

    def __del__(self) -> None:
        """Give everything back when the optimizer is gone."""
        self._show()
        for hook in self._hooks:
            hook.remove()

    @property
    def off(self) -> list[Tensor]:
        """Parameters that are off now."""
        return [p for p in self._off if not p.requires_grad]

    def trains(self, p: Tensor) -> bool:
        """Return True if the user trains a parameter, though its gradient may not be wanted now."""
        return p.requires_grad or p in self._off

    def switched(self, groups: list[Group]) -> Iterator[Tensor]:
        """Yield the parameters that are without a gradient between sync steps."""
        return (p for group in groups if is_switched(group) for p in group["params"] if self.trains(p))

    def schedule(self, groups: list[Group]) -> None:
        """Prepare for the next step."""
        self._enabled = True
        self._waiting = [p for group in groups if group["gradient"] == "sync" and not is_due(group)
                         for p in group["params"]]  # fmt: skip
        if not self.at_rest:
            self._show(self._off.difference(self._waiting))
            self._hide()

    @_disable_dynamo
    def forward_begins(self, training: bool) -> None:
        """Switch off, at the first training forward of a step, what its backward pass must not reach."""
        self._seen = True
        self._seen_training |= training
        if self.at_rest and self._enabled and (training or self._opens_in_eval) and not self.off:
            self._show()
            self._hide()

    def step_begins(self, groups: list[Group]) -> None:
        """Warn where gradients were computed for nothing; if no forward was seen, flags are visible from now on."""
        seen = self._seen
        self._opens_in_eval |= seen and not self._seen_training  # as with frozen BatchNorm
        self._seen = self._seen_training = False
        if not self.at_rest and self._enabled:
            if count := sum(p.requires_grad for p in self._waiting if p in self._ours):
                self._warn_once(
                    f"requires_grad of {count} parameters was switched on between two gradients of their part, and "
                    "computing these gradients cost time for nothing; give the optimizer the model to avoid this"
                )
        elif self.at_rest and not seen and any(map(is_switched, groups)):
            self.at_rest = False  # the hooks stay, since compiled graphs depend on them
            self._warn_once(
                "no forward of the model was seen before this step, as happens when it is compiled in place or its "
                "inner parts are called by hand; from now on slow parameters have requires_grad=False between steps"
            )

    def step_ends(self) -> None:
        """Give the flags back where other code must not see them."""
        if self.at_rest:
            self._show()

    def close(self) -> None:
        """Give the flags back and leave them alone until the next step."""
        self._enabled = False
        self._show()

    @contextlib.contextmanager
    def all_trainable(self) -> Iterator[None]:
        """Give the flags back inside a with block."""
        enabled, off = self._enabled, self.off
        self.close()
        try:
            yield
        finally:
            self._enabled = enabled
            self._hide(off)

    def let_go(self, params: set[Tensor]) -> None:
        """Give parameters back for good."""
        self._show(params)
        self._ours -= params

    def _show(self, params: Iterable[Tensor] | None = None) -> None:
        for p in self._off.copy() if params is None else self._off.intersection(params):
            p.requires_grad = True
            self._off.discard(p)

    def _hide(self, params: Iterable[Tensor] | None = None) -> None:
        for p in self._waiting if params is None else params:
            if p.requires_grad and p in self._ours and p not in self._off:
                p.requires_grad = False  # not the method, which raises inside torch.func's transforms
                self._off.add(p)

    def _warn_once(self, problem: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(f"{self._where}.step: {problem}.", NoEffectWarning, stacklevel=7)


@functools.cache
def _watch_other_optimizers() -> None:
    register_optimizer_step_pre_hook(_give_back)


def _give_back(optimizer: Optimizer, *_: object) -> None:
    """Give an ordinary optimizer the parameters that it steps on while they are off, and warn: it missed gradients."""
    if torch.compiler.is_compiling():
        return
    own = getattr(optimizer, "_flags", None)
    for flags in [each for each in list(_living) if each is not own and each.off]:
        params = {p for group in optimizer.param_groups for p in group["params"]}
        if count := len(params.intersection(flags.off)):
            flags.let_go(params)
            message = (
                f"{type(optimizer).__name__}.step: {count} parameters get no gradient, since a Multirate that still "
                "exists has switched them off between two of their gradients. It leaves them alone from now on."
            )
            warnings.warn(message, NoEffectWarning, stacklevel=3)


class ForwardHook:
    """Tells flags of the forwards of a model, the only sign by which an optimizer sees a step begin.

    Keeps neither of them alive.
    """

    def __init__(self, flags: Flags, model: nn.Module) -> None:
        self._flags, self._model = weakref.ref(flags), weakref.ref(model)
        # A compiled model runs its hooks outside of the graph, but would compile this one as a function of its own, in
        # which is_compiling() is always true. torch.optim has imported torch._dynamo by now.
        from torch._dynamo.eval_frame import skip_code

        skip_code(ForwardHook.__call__.__code__)

    def __call__(self, module: nn.Module, _: Any) -> None:
        """Tell, unless no backward pass of this process can follow."""
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():  # a hook inside a graph would break it
            return
        if torch._C._functorch.peek_interpreter_stack() is not None or getattr(module, "_is_replica", False):
            return
        flags, model = self._flags(), self._model()
        if flags is not None and model is not None:
            flags.forward_begins(model.training)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle as something that takes any arguments, does nothing, and needs no mrreg to be loaded."""
        return getattr, (contextlib.nullcontext(), "__exit__")


def hook_forwards(flags: Flags, model: nn.Module, slow: set[Tensor]) -> list[Any]:
    """Hook the model and its direct children with slow parameters, which trainers call as `self.net(x)`."""
    hooked, children = [model], list(model.children())
    while children:
        child = children.pop()
        if type(child) in (nn.ModuleList, nn.ModuleDict):  # never called themselves
            children += child.children()
        elif not slow.isdisjoint(child.parameters()):
            hooked.append(child)
    hook = ForwardHook(flags, model)
    return [module.register_forward_pre_hook(hook, prepend=True) for module in hooked]


def check_model(where: str, model: object, slow: Iterable[Tensor]) -> None:
    """Refuse a model whose forwards do not tell about all slow parameters."""
    if not isinstance(model, nn.Module):
        raise invalid_argument(TypeError, where, "model", "an nn.Module", type(model).__name__)
    known = set(model.parameters())
    if missing := [p for p in slow if p not in known]:
        rule = "the module that holds all slow parameters"
        found = f"one without {len(missing)} of them"
        raise invalid_argument(ValueError, where, "model", rule, found, "Give their common parent.")
