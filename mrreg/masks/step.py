"""What an optimizer sees in a masked step: the kept entries of parameters, in the places of those."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from mrreg.distributed.sharding import as_sharded, is_sharded, local
from mrreg.errors import invalid_state
from mrreg.masks.entries import Unwritten, version_of
from mrreg.masks.optimizers import Path, begun, leaves, replaced
from mrreg.masks.tensors import MaskedTensor

Call = tuple[tuple[Any, ...], dict[str, Any]]


class Leaf:
    """The kept entries of a parameter, of its gradient and of its state, which an optimizer sees in a masked step.

    What is absent cannot change then, whatever the optimizer does, and costs nothing.
    """

    def __init__(self, parameter: Tensor) -> None:
        self.parameter = parameter
        self._memory: dict[Path, Tensor] = {}  # of what has been gathered, to gather into again
        self._known: dict[Path, tuple[Unwritten, Any, Tensor]] = {}  # state that has been written back, and its entries
        self._step = 0  # that wrote it
        self.leaf = nn.Parameter(torch.empty(0, device=parameter.device))
        self._gradient: Any = None  # the parameter's, during a step

    def enter(self, optimizer: Optimizer, params: list[Tensor], place: int, tensor: MaskedTensor, step: int) -> None:
        """Put the kept entries into the place of the parameter."""
        if step != self._step + 1:  # whole state was stepped since: fused optimizers write without telling versions
            self._known.clear()
        self._step = step
        p, grad = self.parameter, self.parameter.grad
        assert grad is not None
        if grad.layout is not torch.strided:
            problem = f"a masked parameter {tuple(p.shape)} has a sparse gradient"
            raise invalid_state("attach", problem, "Single entries of it cannot be held: make it dense.")
        self._entries, self._shape = tensor.entries(p), tensor.kept_shape(p)
        self._params, self._place, self._gradient = params, place, grad
        values = self._take((), p)
        if is_sharded(values):
            self.leaf = nn.Parameter(values)
        else:  # the same object in every step, for compiled ones
            self.leaf.grad = None
            self.leaf.data = values
        self.leaf.grad = self._take(("gradient of the parameter",), grad)
        self._version = version_of(self.leaf.grad)
        p.grad = None  # an interrupted step leaves it so, and keeps `zero_grad` right
        self._state = replaced(dict(optimizer.state.get(p, {})), self._take_state)
        self._params[self._place] = self.leaf
        if self._state:
            optimizer.state[self.leaf] = self._state

    def leave(self, optimizer: Optimizer, completed: bool) -> None:
        """Give the parameter its place back, with what a completed step has made of the kept entries."""
        self._params[self._place] = self.parameter
        self._state = optimizer.state.pop(self.leaf, {})
        gradient, self._gradient = self._gradient, None  # its memory is free once the user lets it go
        small = self.leaf.grad  # None if the step has cleared it, or `zero_grad` after one that failed
        if small is not None and self.parameter.grad is None:
            self.parameter.grad = gradient
        unscaled = getattr(optimizer, "grad_scale", None) is not None  # by a fused step, which no version tells
        if small is not None and (unscaled or self._version is None or version_of(small) != self._version):
            self._entries.put(local(small), local(gradient))
        if not completed:
            return
        self._entries.put(local(self.leaf), local(self.parameter))
        if self._state:
            whole = optimizer.state[self.parameter]
            before = leaves(whole) if whole else begun(optimizer, self.parameter)
            values = replaced(self._state, lambda path, value: self._whole(path, value, before.get(path)))
            whole.clear()
            whole.update(values)

    def _take(self, path: Path, value: Tensor) -> Tensor:
        """Gather kept entries, into the memory of the last step where it fits."""
        here, memory = local(value), self._memory.get(path)
        fits = here.dtype, here.device, self._entries.shape
        if memory is not None and (memory.dtype, memory.device, memory.shape) != fits:
            memory = None
        self._memory[path] = small = self._entries.take(here, out=memory)
        return as_sharded(small, value, self._shape)

    def _take_state(self, path: Path, value: Any) -> Any:
        """Gather state, unless nobody has touched it since the last step wrote it back."""
        if not _by_entry(path, value, self.parameter):
            return value
        unwritten, entries, small = self._known.pop(path, (None, None, value))
        if unwritten is not None and entries is self._entries and unwritten(value):
            return small
        return self._take(path, value)

    def _whole(self, path: Path, value: Any, before: Any) -> Any:
        """Build state of the parameter from that of its kept entries, and for absent ones from what was before."""
        if not _by_entry(path, value, self.leaf):
            return value
        whole = torch.zeros_like(self.parameter, dtype=value.dtype) if before is None else before
        self._entries.put(local(value), local(whole))
        if not self._entries.in_place and not is_sharded(whole):
            self._known[path] = Unwritten(whole), self._entries, value
        return whole


def _by_entry(path: Path, value: Any, parameter: Tensor) -> bool:
    """Tell if state has one entry for each entry of the parameter."""
    return isinstance(value, Tensor) and value.shape == parameter.shape and path[-1] != "step"


def with_closure(call: Call, prepare: Callable[[], None]) -> Call:
    """Return the call of a step, which has a closure, with one that prepares the step after it."""
    args, kwargs = call
    given: Any = kwargs.get("closure") or next(filter(callable, args[1:]))

    def closure() -> Any:
        loss = given()
        prepare()
        return loss

    return tuple(arg for arg in args if not callable(arg)), kwargs | {"closure": closure}
