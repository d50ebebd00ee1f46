"""Keep held entries, and the optimizer's state of their shape, bit-identical through a step; boost the joint step."""

from collections import defaultdict
from collections.abc import Iterator, MutableMapping
from typing import Any

import torch
from torch import Tensor

from mrreg.distributed.sharding import local
from mrreg.masks.masked_tensor import ReusableBuffer, as_bits, bits_dtype

Group = dict[str, Any]
State = MutableMapping[str, Any]

GRADIENT = "grad"


def update_source(optimizer: torch.optim.Optimizer, group: Group) -> str:
    """What a step is -lr times, to the bit: GRADIENT, or a buffer of the state; empty where it is more than that."""
    if type(optimizer) is not torch.optim.SGD or group.get("maximize") or group.get("fused"):
        return ""
    if group.get("momentum"):
        return "" if group.get("nesterov") else "momentum_buffer"
    return "" if group.get("weight_decay") else GRADIENT


def is_static_without_grad(optimizer: torch.optim.Optimizer, group: Group) -> bool:
    """Whether entries without gradient and momentum do not move by a bit: SGD with momentum."""
    more = group.get("weight_decay") or group.get("maximize") or group.get("fused")
    return type(optimizer) is torch.optim.SGD and not more


def _shaped(parameter: Tensor, state: State) -> Iterator[tuple[str, Tensor]]:
    """The parameter and the state tensors with one entry for each of its own."""
    yield "", local(parameter)
    for name, value in state.items():
        if isinstance(value, Tensor) and value.shape == parameter.shape and name != "step":
            yield name, local(value)


class FrozenEntries:
    """What a step must not do to one parameter: remembered before the step, undone after it."""

    def __init__(self) -> None:
        self._slow = torch.empty(0)
        self._drawn: object = None  # the cycle that `_slow` is of
        self._work: defaultdict[str, ReusableBuffer] = defaultdict(ReusableBuffer)
        self._saved: dict[str, Tensor] = {}
        self._boost: float | None = None  # of a joint step; None on masked ones
        self._zeroed: list[tuple[str, Tensor, Tensor]] | None = None  # state whose slow entries are at zero, and those
        self._path = ""  # what a joint step moves along, where that is all it does
        self._group: Group = {}  # with the lr of that step
        self._spare = ReusableBuffer()

    def snapshot(
        self, parameter: Tensor, state: State, bits: Tensor, drawn: object, is_static_without_grad: bool
    ) -> None:
        """Before a masked step: remember the slow entries of the parameter and of its state."""
        self._boost, self._zeroed = None, [] if is_static_without_grad else None
        self._read(bits, drawn)
        for name, value in _shaped(parameter, state):
            if self._zeroed is not None and not name:
                continue  # without gradient and momentum it does not move
            saved = self._work[name].empty_like(value)
            torch.bitwise_and(as_bits(value), _fit(self._slow, value), out=as_bits(saved))
            if self._zeroed is None:
                self._saved[name] = saved
            else:
                as_bits(value).bitwise_and_(_fit(bits, value))
                self._zeroed.append((name, value, saved))

    def prepare_boost(
        self,
        parameter: Tensor,
        bits: Tensor,
        drawn: object,
        boost: float,
        path: str,
        group: Group,
        spare: ReusableBuffer,
    ) -> None:
        """Before a joint step, which moves slow entries `boost` times as far as the optimizer takes them.

        Where the step is along what `path` names (see `update_source`), nothing need be remembered, and memory of the
        parameter's size that is free after the step will do.
        """
        self._boost, self._path, self._group, self._zeroed, self._spare = boost, path, group, None, spare
        if not path:
            self._read(bits, drawn)
            here = local(parameter)
            self._saved[""] = self._work[""].empty_like(here).copy_(here)

    def restore(self, parameter: Tensor, state: State, bits: Tensor, decayed: bool) -> None:
        """After the step: put the slow entries back, or scale what they moved."""
        here = local(parameter)
        if self._boost is not None and self._path:
            if parameter.grad is not None:  # else it has not moved
                along = parameter.grad if self._path == GRADIENT else state[self._path]
                step_size = float(self._group["lr"]) * (self._boost - 1)
                _push_slow(here, local(along), bits, step_size, self._spare)
            return
        if self._boost is not None:
            moved = self._saved.pop("").sub_(here)  # backwards
            as_bits(moved).bitwise_and_(self._slow)
            here.sub_(moved, alpha=self._boost - 1)
            return
        if self._zeroed is not None:
            self.rollback()
            return
        for name, value in _shaped(parameter, state):
            if name in self._saved:  # a select in one pass: bits are -1 and 0
                saved, here = as_bits(self._saved.pop(name)), as_bits(value)
                torch.addcmul(saved, here, _fit(bits, value), value=-1, out=here)
            elif decayed or has_slow_grad(
                parameter, bits
            ):  # new state, that weight decay or a late gradient has entered
                as_bits(value).bitwise_and_(_fit(bits, value))

    def rollback(self) -> None:
        """Put slow entries of the state back where they were set to zero, also after a step that never ended."""
        while self._zeroed:
            _name, value, saved = self._zeroed.pop()
            as_bits(value).bitwise_or_(as_bits(saved))

    def unmasked_state(self) -> dict[str, Tensor]:
        """State as it is once slow entries are back, where they are at zero now."""
        return {
            name: as_bits(value).bitwise_or(as_bits(saved)).view(value.dtype)
            for name, value, saved in self._zeroed or ()
        }

    def _read(self, bits: Tensor, drawn: object) -> None:
        """Keep the bits of the slow entries from step to step; forget a step that never ended."""
        if drawn != self._drawn:
            self._slow = torch.empty(0)  # gives its memory back
            self._slow = torch.bitwise_not(bits, out=self._work["slow bits"].empty_like(bits))
            self._drawn = drawn
        self._saved.clear()


def _push_slow(parameter: Tensor, along: Tensor, bits: Tensor, step_size: float, spare: ReusableBuffer) -> None:
    """Move the slow entries further."""
    slow = spare.empty_like(along)
    torch.addcmul(as_bits(along), as_bits(along), bits, out=as_bits(slow))  # a select in one pass: bits are -1 and 0
    parameter.sub_(slow, alpha=step_size)


def has_slow_grad(parameter: Tensor, bits: Tensor) -> bool:
    """Whether slow entries have a gradient: one that a closure or a hook made during the step."""
    grad = parameter.grad
    return grad is not None and bool(as_bits(local(grad)).bitwise_and(torch.bitwise_not(bits)).any())


def _fit(bits: Tensor, value: Tensor) -> Tensor:
    """Bits as wide as the value's entries: state may be kept in another precision."""
    return bits.to(bits_dtype(value))
