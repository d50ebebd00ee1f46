"""Dotted names in a model (its own is empty), tensors in nested values, what hooks compute, and whether it trains."""

import functools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from traceback import walk_stack
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.optim.optimizer import register_optimizer_step_pre_hook

from mrreg.errors import check, invalid_state, quoted

before_all_steps = functools.cache(register_optimizer_step_pre_hook)  # registers a hook of all optimizers, once


def join(path: str, name: str) -> str:
    """Return the name of something inside the module at path."""
    return f"{path}.{name}" if path else name


def within(path: str, name: str) -> bool:
    """Return True if a name is that of the module at path, or lies in it."""
    return not path or name == path or name.startswith(f"{path}.")


def owner(name: str) -> str:
    """Return the path of the module that has a parameter; of the layer, where a parametrization has it."""
    layer, found, _ = f".{name}".partition(".parametrizations.")
    return layer[1:] if found else name.rpartition(".")[0]


def check_materialized(where: str, what: str, module: nn.Module) -> None:
    """Refuse a scripted module, and one whose lazy parameters have no shape yet."""
    rule, remedy = "a torch.nn.Module, not a scripted one", "Give the module that was scripted."
    scripted = isinstance(module, torch.jit.ScriptModule)
    check(not scripted, where, what, rule, type(module).__name__, remedy, TypeError)
    if lazy := [name for name, p in module.named_parameters() if nn.parameter.is_lazy(p)]:
        raise invalid_state(where, f"the {what} has no shape yet for {quoted(lazy)}", "Run one forward first.")


def tensors_in(value: object, objects: int = 0) -> Iterator[Tensor]:
    """Yield the tensors in nested mappings, iterables and dataclasses, such as a module's inputs or outputs.

    `objects` is how deep to look into other objects (distributions); lists in attributes are passed by: caches have
    them.
    """
    inner: Iterable[Any] = ()
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        inner = value.values()
    elif is_dataclass(value) and not isinstance(value, type):
        inner = [getattr(value, field.name) for field in fields(value)]
    elif isinstance(value, tuple | list | set | frozenset | deque):
        inner = value
    elif objects and hasattr(value, "__dict__") and not isinstance(value, type):
        inner = [each for each in vars(value).values() if isinstance(each, Tensor) or hasattr(each, "__dict__")]
        objects -= 1
    for each in inner:
        yield from tensors_in(each, objects)


def rebuild_attributes(modules: Iterable[nn.Module]) -> None:
    """Compute again what hooks of torch.nn.utils set before every forward, such as the `weight` of a pruned layer.

    Until then it is what the last forward computed, perhaps from other tensors than the parameters.
    """
    for inner in modules:
        for hook in list(inner._forward_pre_hooks.values()):
            if type(hook).__module__.startswith("torch.nn.utils."):
                training, inner.training = inner.training, False  # else a spectral norm iterates
                hook(inner, ())
                inner.training = training


def may_be_differentiated() -> bool:
    """Return False without gradients, but not in a reentrant checkpoint, whose backward pass runs the forward again."""
    if torch.is_grad_enabled() or forward_ad._current_level >= 0:
        return True
    frames = () if torch.compiler.is_compiling() else walk_stack(None)
    return any(any(getattr(frame.f_locals.get("ctx"), "needs_input_grad", ())) for frame, _ in frames)
