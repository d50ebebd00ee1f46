"""Optimizer steps of thin models: masked ones move the kept entries alone, joint ones move absent entries further."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from mrreg.distributed.sharding import as_sharded, is_sharded, local
from mrreg.errors import invalid_state
from mrreg.masks.entries import Unwritten, version_of
from mrreg.masks.mask import Mask
from mrreg.masks.nested import Path, leaves, replaced
from mrreg.masks.optimizers import BeginState
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
        self.show(optimizer)

    def show(self, optimizer: Optimizer) -> None:
        """Let the optimizer see the kept entries."""
        self._params[self._place] = self.leaf
        if self._state:
            optimizer.state[self.leaf] = self._state

    def hide(self, optimizer: Optimizer) -> None:
        """Let the optimizer see the parameter."""
        self._params[self._place] = self.parameter
        self._state = optimizer.state.pop(self.leaf, {})

    def leave(self, optimizer: Optimizer, begin: BeginState | None = None) -> None:
        """Give the parameter its place back; with `begin` the step was completed, and its results are taken over."""
        self.hide(optimizer)
        gradient, self._gradient = self._gradient, None  # its memory is free once the user lets it go
        if self.parameter.grad is None:
            self.parameter.grad = gradient
        if begin is None:
            return
        self._entries.put(local(self.leaf), local(self.parameter))
        if self._state:
            whole = optimizer.state[self.parameter]
            before = dict(leaves(whole))
            values = replaced(self._state, lambda path, value: self._whole(path, value, before.get(path), begin))
            whole.clear()
            whole.update(values)
        small = self.leaf.grad
        unscaled = getattr(optimizer, "grad_scale", None) is not None  # by a fused step, which no version tells
        written = small is not None and (unscaled or self._version is None or version_of(small) != self._version)
        if small is not None and written:
            self._entries.put(local(small), local(gradient))

    def _take(self, path: Path, value: Tensor) -> Tensor:
        """Gather kept entries into the memory of the last step."""
        here, memory = local(value), self._memory.get(path)
        if memory is None or memory.dtype != here.dtype or memory.shape != self._entries.shape:
            self._memory[path] = memory = self._entries.take(here)
        else:
            self._entries.take(here, out=memory)
        return as_sharded(memory, value, self._shape)

    def _take_state(self, path: Path, value: Tensor) -> Tensor:
        """Gather state, unless nobody has touched it since the last step wrote it back."""
        if not _by_entry(path, value, self.parameter):
            return value
        unwritten, entries, small = self._known.pop(path, (None, None, value))
        if unwritten is not None and entries is self._entries and unwritten(value):
            return small
        return self._take(path, value)

    def _whole(self, path: Path, value: Tensor, before: Any, begin: BeginState) -> Tensor:
        """Build state of the parameter from that of its kept entries; absent ones have what new state begins with."""
        if not _by_entry(path, value, self.leaf):
            return value
        if before is None:
            p, number = self.parameter.detach(), begin(self.parameter).get(path, 0.0)
            before = p.to(value.dtype, copy=True) if number is None else torch.full_like(p, number, dtype=value.dtype)
        whole: Tensor = before
        self._entries.put(local(value), local(whole))
        if not self._entries.in_place and not is_sharded(whole):
            self._known[path] = Unwritten(whole), self._entries, value
        return whole


def _by_entry(path: Path, value: Tensor, parameter: Tensor) -> bool:
    """Tell if state has one entry for each entry of the parameter."""
    return value.shape == parameter.shape and path[-1] != "step"


Masked = list[tuple[MaskedTensor, Tensor, Mask]]  # thin tensors that are parameters of the optimizer


class MaskedStep:
    """The thin parameters of one optimizer, while it steps."""

    def __init__(self) -> None:
        self.running = False  # from the hook before a step to the one after it
        self._steps = 0
        self._leaves: dict[int, Leaf] = {}
        self._inside: list[Leaf] = []
        self._aside: list[tuple[Tensor, Tensor]] = []  # parameters of blocks that are off, and their gradients
        self._moving: list[tuple[MaskedTensor, Tensor, Tensor, float]] = []  # values before a joint step, and boost

    @property
    def is_nested(self) -> bool:
        """True if a step that begins is that of a subclass, which calls `super().step()`."""
        inside = [*(leaf.parameter for leaf in self._inside), *(p for p, _ in self._aside)]
        return bool(inside) and all(p.grad is None for p in inside)

    def begin(self, optimizer: Optimizer, masked: Masked, call: Call, late: bool) -> Call | None:
        """Prepare a step as the phase of each mask asks; return the call that the optimizer shall get instead, if any.

        Where gradients may still change (`late`), kept entries are gathered when the optimizer calls its closure, which
        it does before all else.
        """
        if self.is_nested:
            return None
        self._steps += 1
        masked = [each for each in masked if each[0].has_absent]
        self._remember([each for each in masked if not each[2].masking and each[2].boost_of(each[1])[0] != 1], late)
        masked = [each for each in masked if each[2].masking]
        if not late:
            self._enter(optimizer, masked)
            return None
        return _with_closure(call, lambda: self._enter(optimizer, masked)) if masked else None

    @torch.no_grad()
    def end(self, optimizer: Optimizer) -> None:
        """Write kept entries back after a step, or move absent ones further."""
        self._leave(optimizer, BeginState(optimizer))
        while self._moving:
            tensor, parameter, before, boost = self._moving.pop()
            here = local(parameter)
            kept = None if tensor.off else tensor.entries(parameter).take(here)
            torch.lerp(before, here, boost, out=here)
            if kept is not None:
                tensor.entries(parameter).put(kept, here)

    def abandon(self, optimizer: Optimizer) -> None:
        """Undo a step that never ended, for something in it failed."""
        self._moving.clear()
        self._leave(optimizer)

    def _leave(self, optimizer: Optimizer, begin: BeginState | None = None) -> None:
        while self._inside:
            self._inside.pop().leave(optimizer, begin)
        while self._aside:
            p, grad = self._aside.pop()
            p.grad = grad if p.grad is None else p.grad

    def hide(self, optimizer: Optimizer) -> None:
        """Show whole parameters to who saves the optimizer in the middle of a step."""
        for leaf in self._inside:
            leaf.hide(optimizer)

    def show(self, optimizer: Optimizer) -> None:
        """Go on with the step."""
        for leaf in self._inside:
            leaf.show(optimizer)

    @torch.no_grad()
    def _enter(self, optimizer: Optimizer, masked: Masked) -> None:
        """Put kept entries into the places of parameters that have a gradient."""
        lists = [group["params"] for group in optimizer.param_groups]
        places = {id(p): (each, i) for each in lists for i, p in enumerate(each)}
        for tensor, p, _ in masked:
            if p.grad is not None and tensor.off:
                self._aside.append((p, p.grad))
                p.grad = None
            elif p.grad is not None:
                leaf = self._leaves.get(id(p)) or self._leaves.setdefault(id(p), Leaf(p))
                leaf.enter(optimizer, *places[id(p)], tensor, self._steps)
                self._inside.append(leaf)

    @torch.no_grad()
    def _remember(self, masked: Masked, late: bool) -> None:
        """Keep the values that a joint step moves from, in the memory of masked gradients: it is free now."""
        for tensor, p, mask in masked:
            if late or p.grad is not None:
                here = local(p)
                self._moving.append((tensor, p, tensor.gradients.empty_like(here).copy_(here), mask.boost_of(p)[0]))


def _with_closure(call: Call, prepare: Callable[[], None]) -> Call:
    """Return the call of a step with a closure that prepares it, after the user's own."""
    args, kwargs = call
    given = kwargs.get("closure", next(filter(callable, args[1:]), None))

    def closure() -> Any:
        loss = given() if given is not None else None
        prepare()
        return loss

    if any(callable(arg) for arg in args[1:]):
        return tuple(closure if callable(arg) else arg for arg in args), kwargs
    return args, kwargs | {"closure": closure}
