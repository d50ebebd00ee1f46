"""Optimizer steps of thin models: masked ones move the kept entries alone, joint ones move absent entries further."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from mrreg.distributed.sharding import local
from mrreg.errors import wrong_moment
from mrreg.masks.kept_entries import KeptEntries
from mrreg.masks.thin_mask import ThinMask, ThinTensor

Call = tuple[tuple[Any, ...], dict[str, Any]]


class ThinLeaf:
    """The kept entries of a parameter, of its gradient and of its state, which an optimizer sees in a masked step.

    What is absent cannot change then, whatever the optimizer does, and costs nothing.
    """

    def __init__(self, parameter: Tensor) -> None:
        self.parameter = parameter
        self._memory: dict[str, Tensor] = {}  # of what has been gathered, to gather into again
        self._leaf = nn.Parameter(local(parameter)[:0])

    def enter(self, optimizer: Optimizer, params: list[Tensor], place: int, entries: KeptEntries) -> None:
        """Put the kept entries into the place of the parameter."""
        p, grad = self.parameter, self.parameter.grad
        assert grad is not None
        if grad.layout is not torch.strided:
            problem = f"a parameter {tuple(p.shape)} of a thin model has a sparse gradient"
            raise wrong_moment("attach", problem, "Single entries of it cannot be held: make it dense.")
        self._entries, self._params, self._place, self._gradient = entries, params, place, grad
        self._leaf.grad = None
        self._leaf.data = self._take("", p)
        self._leaf.requires_grad = p.requires_grad
        self._leaf.grad = self._take("grad", grad)
        self._versions = self._leaf.grad._version
        p.grad = None  # an interrupted step leaves it so, and keeps `zero_grad` right
        if state := optimizer.state.get(p):
            optimizer.state[self._leaf] = {
                name: self._take(name, value) if _by_entry(name, value, p) else value for name, value in state.items()
            }
        self.show()

    def show(self) -> None:
        """Let the optimizer see the kept entries."""
        self._params[self._place] = self._leaf

    def hide(self) -> None:
        """Let the optimizer see the parameter."""
        self._params[self._place] = self.parameter

    def leave(self, optimizer: Optimizer, completed: bool) -> None:
        """Give the parameter its place back; with what the step has made of its kept entries, if it was completed."""
        self.hide()
        state = optimizer.state.pop(self._leaf, None)
        if self.parameter.grad is None:
            self.parameter.grad = self._gradient
        if not completed:
            return
        self._entries.put(self._leaf.detach(), local(self.parameter))
        grad = self._leaf.grad
        if grad is not None and grad._version != self._versions:  # such as unscaled by a fused step
            self._entries.put(grad, local(self._gradient))
        if state:
            whole = optimizer.state[self.parameter]
            for name in [name for name in whole if name not in state]:
                del whole[name]
            for name, value in state.items():
                whole[name] = self._whole(name, value, whole.get(name))

    def _take(self, name: str, value: Tensor) -> Tensor:
        """Gather kept entries into the memory of the last step."""
        here, memory = local(value), self._memory.get(name)
        if memory is None or memory.dtype != here.dtype or memory.shape != self._entries.shape:
            self._memory[name] = memory = self._entries.take(here)
        else:
            self._entries.take(here, out=memory)
        return memory

    def _whole(self, name: str, value: Any, before: Any) -> Any:
        """State of the parameter from that of its kept entries; absent ones of new state are zero."""
        if not _by_entry(name, value, self._leaf):
            return value
        if before is None:
            before = torch.zeros_like(self.parameter, dtype=value.dtype, requires_grad=False)
        self._entries.put(value, local(before))
        return before


def _by_entry(name: str, value: Any, parameter: Tensor) -> bool:
    """Whether state has one entry for each of the parameter's."""
    return isinstance(value, Tensor) and value.shape == parameter.shape and name != "step"


class ThinStep:
    """The thin parameters of one optimizer, while it steps."""

    def __init__(self) -> None:
        self._leaves: dict[int, ThinLeaf] = {}
        self._inside: list[ThinLeaf] = []
        self._moving: list[tuple[ThinTensor, Tensor, Tensor, float]] = []  # with values before a joint step, and boost

    def begin(self, optimizer: Optimizer, masks: list[ThinMask], call: Call, late: bool) -> Call | None:
        """Before a step: prepare what the phase of each mask asks for.

        Where gradients may still change (`late`), kept entries are gathered when the optimizer calls its closure, which
        it does before all else.
        """
        for mask in masks:
            if not mask._masking and mask.boost != 1:
                self._remember(optimizer, mask, late)
        masking = [mask for mask in masks if mask._masking]
        if not late:
            self._enter(optimizer, masking)
            return None
        if not masking:
            return None
        return _with_closure(call, lambda: self._enter(optimizer, masking))

    @torch.no_grad()
    def end(self, optimizer: Optimizer) -> None:
        """After a step: write kept entries back, or move absent ones further."""
        while self._inside:
            self._inside.pop().leave(optimizer, completed=True)
        while self._moving:
            tensor, parameter, before, boost = self._moving.pop()
            here = local(parameter)
            backwards = before.sub_(here)
            tensor.entries(parameter).clear(backwards)
            here.sub_(backwards, alpha=boost - 1)

    def abandon(self, optimizer: Optimizer | None) -> None:
        """Undo a step that never ended, for something in it failed."""
        self._moving.clear()
        while self._inside:
            leaf = self._inside.pop()
            leaf.hide() if optimizer is None else leaf.leave(optimizer, completed=False)

    def hide(self) -> None:
        for leaf in self._inside:
            leaf.hide()

    def show(self) -> None:
        for leaf in self._inside:
            leaf.show()

    @torch.no_grad()
    def _enter(self, optimizer: Optimizer, masks: list[ThinMask]) -> None:
        places = {id(p): (group["params"], i) for group in optimizer.param_groups for i, p in enumerate(group["params"])}
        for mask in masks:
            for tensor, p in mask.parameters():
                if p.grad is not None and id(p) in places:
                    leaf = self._leaves.setdefault(id(p), ThinLeaf(p))
                    leaf.enter(optimizer, *places[id(p)], tensor.entries(p))
                    self._inside.append(leaf)

    @torch.no_grad()
    def _remember(self, optimizer: Optimizer, mask: ThinMask, late: bool) -> None:
        """Keep the values that a joint step moves from; the memory of masked gradients is free for them."""
        inside = {id(p) for group in optimizer.param_groups for p in group["params"]}
        for tensor, p in mask.parameters():
            if id(p) in inside and (late or p.grad is not None):
                here = local(p)
                before = tensor.gradients.empty_like(here).copy_(here)
                self._moving.append((tensor, p, before, mask.boost))


def _with_closure(call: Call, prepare: Callable[[], None]) -> Call:
    """The call of a step with a closure that prepares it, after the user's own."""
    args, kwargs = call
    given = kwargs.get("closure", next(filter(callable, args[1:]), None))

    def closure() -> Any:
        loss = given() if given is not None else None
        prepare()
        return loss

    if any(callable(arg) for arg in args[1:]):
        return tuple(closure if callable(arg) else arg for arg in args), kwargs
    return args, kwargs | {"closure": closure}
