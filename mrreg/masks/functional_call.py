"""Call a module with other tensors in the place of some of its parameters, which nobody else gets to see."""

from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from threading import RLock, get_ident
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mrreg.module_utils import parameter

REFUSED = (torch.jit.ScriptModule, nn.DataParallel)  # by functional_call, which says so


class Override(NamedTuple):
    """What a call sees: a tensor for each parameter, by its id; and what it has to put back: where, name, parameter."""

    tensors: Mapping[int, Tensor]
    changed: list[tuple[Any, str, Any]]


_overrides: dict[int, Override] = {}  # of the calls that run, by thread
_lock = RLock()


class ThreadLocalParameters(MutableMapping[str, Any]):
    """Stands for `_parameters` of a module during calls: each thread sees its own call's tensors, others parameters."""

    def __init__(self, own: dict[str, Any]) -> None:
        self.own, self.users = own, 0
        self.traced: dict[str, Any] = {}  # as the last call sees it, for graphs that it compiles or runs

    def __getitem__(self, name: str) -> Any:
        if torch.compiler.is_compiling():
            return self.traced[name]
        value, override = self.own[name], _overrides.get(get_ident())
        return value if override is None else override.tensors.get(id(value), value)

    def __setitem__(self, name: str, value: Any) -> None:
        self._note(name)
        self.own[name] = value

    def __delitem__(self, name: str) -> None:
        self._note(name)
        del self.own[name]

    def _note(self, name: str) -> None:
        """What a call sets in the place of a parameter that it does not see lasts as long as the call."""
        override, value = _overrides.get(get_ident()), self.own.get(name)
        if override is not None and id(value) in override.tensors:
            override.changed.append((self.own, name, value))

    def __contains__(self, name: object) -> bool:
        return name in self.own

    def __iter__(self) -> Iterator[str]:
        return iter(self.own)

    def __len__(self) -> int:
        return len(self.own)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self.own),)  # copies and pickles have the parameters


def functional_call(
    tensors: Mapping[str, Tensor], module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """What `torch.func.functional_call` returns; parameters that are tied to a named one are replaced with it.

    That function lists all parameters and buffers by name before every call, which takes longer than to mask the
    weights of a small Transformer layer. It also puts the tensors where other threads, signal handlers and hooks that
    save the model find them, and where two calls at once leave them for good.
    """
    if torch.compiler.is_compiling() or torch._C._is_tracing() or isinstance(module, REFUSED):
        return torch.func.functional_call(module, dict(tensors), args, dict(kwargs))
    thread = get_ident()
    before = _overrides.get(thread)
    outer = {} if before is None else before.tensors
    override = Override({**outer, **{id(parameter(module, name)): tensor for name, tensor in tensors.items()}}, [])
    entered: list[tuple[nn.Module, ThreadLocalParameters]] = []
    try:
        _enter(module, override, entered)
        _overrides[thread] = override
        return module(*args, **kwargs)
    finally:
        _set(thread, before)
        _leave(override, entered)


def _enter(module: nn.Module, override: Override, entered: list[tuple[nn.Module, ThreadLocalParameters]]) -> None:
    """Let each module that has one of these parameters show its own by way of `ThreadLocalParameters`."""
    with _lock:
        for inner in module.modules():
            own: Any = inner._parameters
            if override.tensors.keys().isdisjoint(map(id, own.values())):
                continue
            if isinstance(inner, torch.jit.ScriptModule):  # runs elsewhere, and sees what is in its own table
                for name, value in [item for item in own.items() if id(item[1]) in override.tensors]:
                    override.changed.append((own, name, value))
                    own[name] = override.tensors[id(value)]
                continue
            seen: ThreadLocalParameters = own if type(own) is ThreadLocalParameters else ThreadLocalParameters(own)
            entered.append((inner, seen))
            seen.users += 1
            seen.traced = {name: override.tensors.get(id(value), value) for name, value in seen.own.items()}
            inner.__dict__["_parameters"] = seen


def _leave(override: Override, entered: list[tuple[nn.Module, ThreadLocalParameters]]) -> None:
    """Take that back where this was the last call."""
    with _lock:
        while override.changed:
            own, name, value = override.changed.pop()
            own[name] = value
        for inner, seen in entered:
            seen.users -= 1
            if not seen.users and inner.__dict__["_parameters"] is seen:
                inner.__dict__["_parameters"] = seen.own


def _set(thread: int, override: Override | None) -> None:
    if override is None:
        _overrides.pop(thread, None)
    else:
        _overrides[thread] = override


@contextmanager
def true_parameters() -> Iterator[None]:
    """Within, modules show their parameters, also to a hook or a signal handler that interrupts a call."""
    thread = get_ident()
    override = _overrides.pop(thread, None)
    try:
        yield
    finally:
        _set(thread, override)
