"""Call a module with other tensors in the place of some of its parameters, which nobody else gets to see."""

from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from threading import RLock, get_ident
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mrreg.masks.checkpoint_guard import CheckpointGuard
from mrreg.module_utils import join, parameter

REFUSED = (torch.jit.ScriptModule, nn.DataParallel)  # by torch.func.functional_call, which says why


class Override(NamedTuple):
    """Tensors that one call sees in the place of parameters.

    Args:
        tensors: A tensor for each parameter that is replaced, by the parameter's id.
        changed: Entries to put back after the call: table, key, value.
        guard: Is told of every replaced parameter that is read.
    """

    tensors: Mapping[int, Tensor]
    changed: list[tuple[dict[str, Any], str, Any]]
    guard: CheckpointGuard

    def read(self, value: Any) -> Any:
        """Return the tensor in the place of a parameter, or the value itself."""
        tensor = self.tensors.get(id(value))
        if tensor is None:
            return value
        self.guard.note_read()
        return tensor


_overrides: dict[int, Override] = {}  # of the running calls, by thread
_lock = RLock()


class ThreadLocalParameters(MutableMapping[str, Any]):
    """Stands for `_parameters` of a module in calls: a thread sees the tensors of its own call, others parameters."""

    def __init__(self, parameters: dict[str, Any]) -> None:
        self.parameters, self.users = parameters, 0
        self.traced: dict[str, Any] = {}  # what the last call sees, for graphs that it compiles or runs

    def __getitem__(self, name: str) -> Any:
        if torch.compiler.is_compiling():
            return self.traced[name]
        value, override = self.parameters[name], _overrides.get(get_ident())
        return value if override is None else override.read(value)

    def __setitem__(self, name: str, value: Any) -> None:
        self._note_change(name)
        self.parameters[name] = value

    def __delitem__(self, name: str) -> None:
        self._note_change(name)
        del self.parameters[name]

    def _note_change(self, name: str) -> None:
        # what a call sets in the place of a parameter that it does not see lasts as long as the call
        override, value = _overrides.get(get_ident()), self.parameters.get(name)
        if override is not None and id(value) in override.tensors:
            override.changed.append((self.parameters, name, value))

    def __contains__(self, name: object) -> bool:
        return name in self.parameters

    def __iter__(self) -> Iterator[str]:
        return iter(self.parameters)

    def __len__(self) -> int:
        return len(self.parameters)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self.parameters),)  # copies and pickles have the parameters


def functional_call(
    tensors: Mapping[str, Tensor], module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Call as `torch.func.functional_call` does; parameters tied to a named one are replaced with it.

    torch's function lists all parameters and buffers by name before every call, which takes longer than masking the
    weights of a small Transformer layer. It also leaves the tensors where other threads, signal handlers and hooks that
    save the model find them, and two calls at once can leave them there for good.
    """
    if torch.compiler.is_compiling() or torch._C._is_tracing() or isinstance(module, REFUSED):
        return _call_by_torch(tensors, module, args, kwargs)
    replaced = {}
    for name, tensor in tensors.items():
        value = parameter(module, name)
        replaced[id(value)] = tensor
        if attributes := getattr(value, "__dict__", None):  # other libraries keep what they need on the parameter
            tensor.__dict__.update(attributes)
    thread = get_ident()
    before = _overrides.get(thread)
    override = Override({**(before.tensors if before else {}), **replaced}, [], CheckpointGuard("MultirateMask"))
    entered: list[tuple[nn.Module, ThreadLocalParameters]] = []
    try:
        _enter(module, override, entered)
        _overrides[thread] = override
        output = module(*args, **kwargs)
        override.guard.check_output(output, tensors.values())
        return output
    finally:
        _set(thread, before)
        _leave(override, entered)


def _call_by_torch(
    tensors: Mapping[str, Tensor], module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Call torch's function with one name for each place of a parameter.

    A module under two names has one place. Replaced under both, it would keep what the first had put there.
    """
    values = [(parameter(module, name), tensor) for name, tensor in tensors.items()]
    places = {
        join(path, leaf): tensor
        for path, inner in module.named_modules()
        for leaf, p in inner._parameters.items()
        for value, tensor in values
        if p is value
    }
    return torch.func.functional_call(module, places, args, dict(kwargs), tie_weights=False)


def _enter(module: nn.Module, override: Override, entered: list[tuple[nn.Module, ThreadLocalParameters]]) -> None:
    """Let each module that has one of these parameters show the tensors instead."""
    with _lock:
        for inner in module.modules():
            own: Any = inner._parameters
            table = own if isinstance(inner, torch.jit.ScriptModule) else inner.__dict__
            if table is own or "_is_replica" in table:
                # A scripted module sees what is in its own table, and a replica of DataParallel has tensors for
                # attributes; but nobody else looks at a replica.
                for name, value in [item for item in table.items() if id(item[1]) in override.tensors]:
                    override.changed.append((table, name, value))
                    table[name] = override.tensors[id(value)]
            elif not override.tensors.keys().isdisjoint(map(id, own.values())):
                seen = own if type(own) is ThreadLocalParameters else ThreadLocalParameters(own)
                entered.append((inner, seen))
                seen.users += 1
                seen.traced = {name: override.tensors.get(id(value), value) for name, value in seen.parameters.items()}
                inner.__dict__["_parameters"] = seen


def _leave(override: Override, entered: list[tuple[nn.Module, ThreadLocalParameters]]) -> None:
    """Take that back where this was the last call."""
    with _lock:
        while override.changed:
            table, name, value = override.changed.pop()
            table[name] = value
        for inner, seen in entered:
            seen.users -= 1
            if not seen.users and inner.__dict__["_parameters"] is seen:
                inner.__dict__["_parameters"] = seen.parameters


def _set(thread: int, override: Override | None) -> None:
    if override is None:
        _overrides.pop(thread, None)
    else:
        _overrides[thread] = override


@contextmanager
def true_parameters() -> Iterator[None]:
    """Let modules show their parameters in a `with` block, also to hooks and signal handlers that interrupt a call."""
    thread = get_ident()
    override = _overrides.pop(thread, None)
    try:
        yield
    finally:
        _set(thread, override)
