"""Call a module with other tensors in the place of some of its parameters, which nobody else gets to see."""

from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from threading import RLock, get_ident
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from mrreg.module_utils import parameter

REFUSED = (torch.jit.ScriptModule, nn.DataParallel)  # by functional_call, which says so


class Swap(NamedTuple):
    """What a call sees: a tensor for each parameter, by its id; and what it has to put back: where, name, parameter."""

    tensors: Mapping[int, Tensor]
    changed: list[tuple[Any, str, Any]]


_swaps: dict[int, Swap] = {}  # of the calls that run, by thread
_lock = RLock()


class _Seen(MutableMapping[str, Any]):
    """Stands for `_parameters` of a module during calls: each thread sees its own call's tensors, others parameters."""

    def __init__(self, own: dict[str, Any]) -> None:
        self.own, self.users = own, 0
        self.traced: dict[str, Any] = {}  # as the last call sees it, for graphs that it compiles or runs

    def __getitem__(self, name: str) -> Any:
        if torch.compiler.is_compiling():
            return self.traced[name]
        value, swap = self.own[name], _swaps.get(get_ident())
        return value if swap is None else swap.tensors.get(id(value), value)

    def __setitem__(self, name: str, value: Any) -> None:
        self._note(name)
        self.own[name] = value

    def __delitem__(self, name: str) -> None:
        self._note(name)
        del self.own[name]

    def _note(self, name: str) -> None:
        """What a call sets in the place of a parameter that it does not see lasts as long as the call."""
        swap, value = _swaps.get(get_ident()), self.own.get(name)
        if swap is not None and id(value) in swap.tensors:
            swap.changed.append((self.own, name, value))

    def __contains__(self, name: object) -> bool:
        return name in self.own

    def __iter__(self) -> Iterator[str]:
        return iter(self.own)

    def __len__(self) -> int:
        return len(self.own)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self.own),)  # copies and pickles have the parameters


def call_with(
    tensors: Mapping[str, Tensor], module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """What `torch.func.functional_call` returns; parameters that are tied to a named one are replaced with it.

    That function lists all parameters and buffers by name before every call, which takes longer than to mask the
    weights of a small Transformer layer. It also puts the tensors where other threads, signal handlers and hooks that
    save the model find them, and where two calls at once leave them for good.
    """
    if torch.compiler.is_compiling() or torch._C._is_tracing() or isinstance(module, REFUSED):
        return functional_call(module, dict(tensors), args, dict(kwargs))
    thread = get_ident()
    before = _swaps.get(thread)
    outer = {} if before is None else before.tensors
    swap = Swap({**outer, **{id(parameter(module, name)): tensor for name, tensor in tensors.items()}}, [])
    entered: list[tuple[nn.Module, _Seen]] = []
    try:
        _enter(module, swap, entered)
        _swaps[thread] = swap
        return module(*args, **kwargs)
    finally:
        _set(thread, before)
        _leave(swap, entered)


def _enter(module: nn.Module, swap: Swap, entered: list[tuple[nn.Module, _Seen]]) -> None:
    """Let each module that has one of these parameters show its own by way of `_Seen`."""
    with _lock:
        for inner in module.modules():
            own: Any = inner._parameters
            if swap.tensors.keys().isdisjoint(map(id, own.values())):
                continue
            if isinstance(inner, torch.jit.ScriptModule):  # runs elsewhere, and sees what is in its own table
                for name, value in [item for item in own.items() if id(item[1]) in swap.tensors]:
                    swap.changed.append((own, name, value))
                    own[name] = swap.tensors[id(value)]
                continue
            seen: _Seen = own if type(own) is _Seen else _Seen(own)
            entered.append((inner, seen))
            seen.users += 1
            seen.traced = {name: swap.tensors.get(id(value), value) for name, value in seen.own.items()}
            inner.__dict__["_parameters"] = seen


def _leave(swap: Swap, entered: list[tuple[nn.Module, _Seen]]) -> None:
    """Take that back where this was the last call."""
    with _lock:
        while swap.changed:
            own, name, value = swap.changed.pop()
            own[name] = value
        for inner, seen in entered:
            seen.users -= 1
            if not seen.users and inner.__dict__["_parameters"] is seen:
                inner.__dict__["_parameters"] = seen.own


def _set(thread: int, swap: Swap | None) -> None:
    if swap is None:
        _swaps.pop(thread, None)
    else:
        _swaps[thread] = swap


@contextmanager
def true_parameters() -> Iterator[None]:
    """Within, modules show their parameters, also to a hook or a signal handler that interrupts a call."""
    thread = get_ident()
    swap = _swaps.pop(thread, None)
    try:
        yield
    finally:
        _set(thread, swap)
