"""`requires_grad` of parameters that are not due: off where their gradient would be computed for nothing.

It is off from a training forward of the model to the end of its step, so that other code finds the flags of the user.
Only what is on is switched off, and only that is switched on again: what the user froze stays frozen.
"""

import contextlib
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.optim import Optimizer

from mrreg.distributed.checks import DDP, check_wrapper
from mrreg.distributed.join import compare_after_join
from mrreg.errors import check, check_type, warn
from mrreg.module_utils import before_all_steps, check_materialized
from mrreg.optim.clock import Group, has_gradient, is_due

living: "weakref.WeakSet[Flags]" = weakref.WeakSet()


def is_switched(group: Group) -> bool:
    """Return True if the parameters of a group are without a gradient between its sync steps."""
    return bool(group["period"] > 1 and group["gradient"] == "sync")


class Flags:
    """Switches `requires_grad` of the parameters of one optimizer; those of older ones let go of what it takes."""

    def __init__(self, where: str, groups: list[Group], model: nn.Module | None) -> None:
        self._where = where
        self._ours = {p for group in groups for p in group["params"]}
        for older in list(living):
            older.let_go(self._ours)
        self.off: set[Tensor] = set()  # switched off now
        self._seen = self._seen_training = self._opens_in_eval = False  # forwards since the last step
        self._had_gradient = False  # in a part that is due, when the flags were switched off
        self._warned = False
        self._wrappers: weakref.WeakSet[DDP] = weakref.WeakSet()
        self._hooks = [] if model is None else hook_forwards(self, model, groups)
        if model is not None:
            compare_after_join(model, self, self._where, lambda flags: flags.clock)
        living.add(self)
        before_all_steps(_give_back)
        self.schedule(groups)

    def __del__(self) -> None:
        """Give everything back when the optimizer is gone."""
        self.show()
        for hook in self._hooks:
            hook.remove()

    def trains(self, p: Tensor) -> bool:
        """Return True if the user trains a parameter, though its gradient may not be wanted now."""
        return p.requires_grad or p in self.off

    def schedule(self, groups: list[Group]) -> None:
        """Prepare for the next step."""
        self._enabled, self.clock = True, groups[0]["clock"]
        self._waiting = [group for group in groups if group["gradient"] == "sync" and not is_due(group)]
        self._wanted = [group for group in groups if group["gradient"] != "sync" or is_due(group)]

    @_disable_dynamo
    def forward_begins(self, training: bool) -> None:
        """Switch off, at the first training forward of a step, what its backward pass must not reach."""
        self._seen = True
        self._seen_training |= training
        wrapper: DDP | None = DDP._active_ddp_module if torch.distributed.is_available() else None
        if wrapper is not None and wrapper not in self._wrappers:
            self._wrappers.add(wrapper)
            compare_after_join(wrapper, self, self._where, lambda flags: flags.clock)
        if not self._waiting or not self._enabled or not (training or self._opens_in_eval):
            return
        if any(not p.requires_grad for p in self.off):  # at every forward but the first of a step
            return
        self.show()
        self._had_gradient = has_gradient(self._wanted)
        if any(p.requires_grad for group in self._wanted for p in group["params"]):  # else the loss has no gradient
            self._hide(p for group in self._waiting for p in group["params"])

    def step_begins(self, groups: list[Group]) -> None:
        """Refuse a wrapper that does not fit, and warn where gradients were computed for nothing."""
        switches = any(map(is_switched, groups))
        for wrapper in self._wrappers:
            check_wrapper(self._where, wrapper, switches, self.trains)
        if switches and not self._seen and not self._warned:
            self._warned = True
            warn(
                f"{self._where}.step: no forward of the model was seen before this step, so it saved no time, as "
                "happens where the model is compiled as a whole, where its inner parts are called by hand, and in a "
                "copy of an optimizer."
            )
        self._opens_in_eval |= self._seen and not self._seen_training  # as with frozen BatchNorm
        self._seen = self._seen_training = False

    def zero_grad_begins(self) -> None:
        """Give the flags back after a step that was left out, not between forward and backward: no new gradient yet."""
        if self.off and not self._had_gradient and has_gradient(self._wanted):
            self.show()

    def close(self) -> None:
        """Give the flags back until the next step."""
        self._enabled = False
        self.show()

    @contextlib.contextmanager
    def all_trainable(self) -> Iterator[None]:
        """Give the flags back inside a with block."""
        enabled, off = self._enabled, self.off.copy()
        self.close()
        try:
            yield
        finally:
            self._enabled = enabled
            self._hide(off)

    def let_go(self, params: set[Tensor]) -> None:
        """Give parameters back for good."""
        self.show(params)
        self._ours -= params

    def show(self, params: Iterable[Tensor] | None = None) -> None:
        """Give the flags back."""
        for p in self.off.copy() if params is None else self.off.intersection(params):
            p.requires_grad = True
            self.off.discard(p)

    def _hide(self, params: Iterable[Tensor]) -> None:
        for p in params:
            if p.requires_grad and p in self._ours:
                p.requires_grad = False  # not the method, which raises inside torch.func's transforms
                self.off.add(p)


def _give_back(optimizer: Optimizer, *_: object) -> None:
    """Give an ordinary optimizer the parameters that it steps on while they are off, and warn: it missed gradients."""
    if torch.compiler.is_compiling():
        return
    own = [getattr(each, "_flags", None) for each in (optimizer, *vars(optimizer).values())]  # of what it wraps, too
    for flags in [each for each in list(living) if each.off and each not in own]:
        params = {p for group in optimizer.param_groups for p in group["params"]}
        if count := len(params.intersection(flags.off)):
            flags.let_go(params)
            warn(
                f"{type(optimizer).__name__}.step: {count} parameters get no gradient, since a Multirate that still "
                "exists has switched them off between two of their gradients. It leaves them alone from now on."
            )


class ForwardHook:
    """Tells flags of the forwards of a model, the only sign of a step's beginning. Keeps neither of them alive."""

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


def hook_forwards(flags: Flags, model: nn.Module, groups: list[Group]) -> list[Any]:
    """Hook the model and its direct children with slow parameters, frozen or not: trainers call `self.net(x)`."""
    slow = {p for group in groups if is_switched(group) for p in group["params"]}
    hooked, children = [model], list(model.children())
    while children:
        child = children.pop()
        if type(child) in (nn.ModuleList, nn.ModuleDict):  # never called themselves
            children += child.children()
        elif not slow.isdisjoint(child.parameters()):
            hooked.append(child)
    hook = ForwardHook(flags, model)
    return [module.register_forward_pre_hook(hook, prepend=True) for module in hooked]


def check_model(where: str, model: object, slow: Iterable[Tensor]) -> nn.Module:
    """Refuse a model whose forwards do not tell about all slow parameters."""
    remedy = "Give it as model=, or to MultirateSGD as params: its forwards say when no slow gradient is needed."
    module = check_type(where, "model", model, nn.Module, "the nn.Module with all slow parameters", remedy)
    check_materialized(where, "model", module)
    missing = len(set(slow).difference(module.parameters()))
    rule, found = "the module that holds all slow parameters", f"one without {missing} of them"
    check(not missing, where, "model", rule, found, "Give their common parent.")
    return module
