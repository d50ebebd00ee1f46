"""Hooks on the forwards of a model, the only sign by which an optimizer sees a step begin."""

import contextlib
import weakref
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from mrreg.errors import invalid_argument


def hook_forwards(optimizer: Optimizer, model: nn.Module, slow: set[Tensor], listener: "Listener") -> None:
    """Tell a listener of the forwards of a model, for the life of an optimizer."""
    hook = ForwardHook(listener, model)
    for module in _hooked_modules(model, slow):
        handle = module.register_forward_pre_hook(hook, prepend=True)
        weakref.finalize(optimizer, handle.remove).atexit = False


class Listener(Protocol):
    """Something that is told of forwards."""

    def enter(self, training: bool) -> None:
        """Take note of a forward of the model in training or evaluation mode."""


class ForwardHook:
    """Tells a listener of the forwards of a model; keeps neither of them alive."""

    def __init__(self, listener: Listener, root: nn.Module) -> None:
        self._listener = weakref.ref(listener)
        self._root = weakref.ref(root)
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
        listener, root = self._listener(), self._root()
        if listener is not None and root is not None:
            listener.enter(root.training)

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
