"""Keep held entries, and the optimizer's state of their shape, bit-identical through a step; boost the joint step."""

from collections import defaultdict
from collections.abc import Iterator, MutableMapping
from typing import Any

import torch
from torch import Tensor

from mrreg.shards import local
from mrreg.substitute import as_bits, bits_dtype
from mrreg.workspace import Workspace

Group = dict[str, Any]
State = MutableMapping[str, Any]


def is_descent(optimizer: torch.optim.Optimizer, group: Group) -> bool:
    """Whether a step is -lr times the gradient and nothing else, so that no gradient means no move: plain SGD."""
    more = group.get("momentum") or group.get("weight_decay") or group.get("maximize") or group.get("fused")
    return type(optimizer) is torch.optim.SGD and not more


def _shaped(parameter: Tensor, state: State) -> Iterator[tuple[str, Tensor]]:
    """The parameter and the state tensors with one entry for each of its own."""
    yield "", local(parameter)
    for name, value in state.items():
        if isinstance(value, Tensor) and value.shape == parameter.shape and name != "step":
            yield name, local(value)


class Keeper:
    """What a step must not do to one parameter: remembered before the step, undone after it."""

    def __init__(self) -> None:
        self._slow = torch.empty(0)
        self._drawn: object = None  # the cycle that `_slow` is of
        self._work: defaultdict[str, Workspace] = defaultdict(Workspace)
        self._saved: dict[str, Tensor] = {}
        self._boost: float | None = None  # of a joint step; None on masked ones
        self._rate: float | None = None  # what a joint step moves per unit of gradient, where that is all it does

    def hold(self, parameter: Tensor, state: State, bits: Tensor, drawn: object) -> None:
        """Before a masked step: remember the slow entries of the parameter and of its state."""
        self._boost = None
        self._read(bits, drawn)
        for name, value in _shaped(parameter, state):
            saved = self._work[name].like(value)
            torch.bitwise_and(as_bits(value), _fit(self._slow, value), out=as_bits(saved))
            self._saved[name] = saved

    def push(self, parameter: Tensor, bits: Tensor, drawn: object, boost: float, rate: float | None) -> None:
        """Before a joint step, which moves slow entries `boost` times as far as the optimizer takes them."""
        self._boost, self._rate = boost, rate
        if rate is None or parameter.grad is None:
            self._read(bits, drawn)
            here = local(parameter)
            self._saved[""] = self._work[""].like(here).copy_(here)
        else:
            grad = local(parameter.grad)
            slow = self._work[""].like(grad)
            torch.bitwise_and(as_bits(grad), bits, out=as_bits(slow)).bitwise_xor_(as_bits(grad))
            self._saved = {"": slow}

    def release(self, parameter: Tensor, state: State, bits: Tensor, decayed: bool) -> None:
        """After the step: put the slow entries back, or scale what they moved."""
        here = local(parameter)
        if self._boost is not None and self._rate is not None:
            here.sub_(self._saved.pop(""), alpha=self._rate * (self._boost - 1))
            return
        if self._boost is not None:
            moved = self._saved.pop("").sub_(here)  # backwards
            as_bits(moved).bitwise_and_(self._slow)
            here.sub_(moved, alpha=self._boost - 1)
            return
        for name, value in _shaped(parameter, state):
            if name in self._saved:
                fast = as_bits(value).bitwise_and_(_fit(bits, value))
                fast.bitwise_or_(as_bits(self._saved.pop(name)))
            elif decayed or _reached(parameter, bits):  # new state, that weight decay or a late gradient has entered
                as_bits(value).bitwise_and_(_fit(bits, value))

    def _read(self, bits: Tensor, drawn: object) -> None:
        """Keep the bits of the slow entries from step to step; forget a step that never ended."""
        if drawn != self._drawn:
            self._slow = torch.empty(0)  # gives its memory back
            self._slow = torch.bitwise_not(bits, out=self._work["slow bits"].like(bits))
            self._drawn = drawn
        self._saved.clear()


def _reached(parameter: Tensor, bits: Tensor) -> bool:
    """Whether slow entries have a gradient: one that a closure or a hook made during the step."""
    grad = parameter.grad
    return grad is not None and bool(as_bits(local(grad)).bitwise_and(torch.bitwise_not(bits)).any())


def _fit(bits: Tensor, value: Tensor) -> Tensor:
    """Bits as wide as the value's entries: state may be kept in another precision."""
    return bits.to(bits_dtype(value))
