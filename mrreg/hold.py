"""Keep held entries, and the optimizer's state of their shape, bit-identical through a step; boost the joint step."""

from collections.abc import Iterator, MutableMapping
from typing import Any

import torch
from torch import Tensor

from mrreg.substitute import as_bits, bits_dtype

Group = dict[str, Any]
State = MutableMapping[str, Any]


def cannot_move(optimizer: torch.optim.Optimizer, group: Group) -> bool:
    """Whether entries with zero gradient stay as they are without help: plain SGD."""
    moving = group.get("momentum") or group.get("weight_decay") or group.get("maximize")
    return type(optimizer) is torch.optim.SGD and not moving


def clear_gradient(parameter: Tensor, bits: Tensor) -> None:
    """Zero the gradient of held entries, whatever wrote there since the backward pass."""
    grad = parameter.grad
    if grad is not None:
        as_bits(grad).bitwise_and_(bits)


def _shaped(parameter: Tensor, state: State) -> Iterator[tuple[str, Tensor]]:
    """The state tensors with one entry for each of the parameter's."""
    for name, value in state.items():
        if isinstance(value, Tensor) and value.shape == parameter.shape and name != "step":
            yield name, value


class Held:
    """The slow entries of one parameter and its state before a masked step, to be put back after it."""

    def __init__(self, parameter: Tensor, state: State, bits: Tensor, decayed: bool) -> None:
        self.parameter, self.keep, self.decayed = parameter.detach(), bits, decayed
        self.slow = bits.bitwise_not()
        self.saved = self._slow_part(self.parameter)
        self.saved_state = {name: self._slow_part(value) for name, value in _shaped(parameter, state)}

    def _slow_part(self, value: Tensor) -> Tensor:
        return as_bits(value) & self.slow.to(bits_dtype(value))

    def put_back(self, state: State) -> None:
        """Undo what the step did to held entries."""
        self._put(self.parameter, self.saved)
        for name, value in _shaped(self.parameter, state):
            if name in self.saved_state:
                self._put(value, self.saved_state[name])
            elif self.decayed:  # new state: weight decay is all that can have entered it at held entries
                as_bits(value).bitwise_and_(self.keep.to(bits_dtype(value)))

    def _put(self, value: Tensor, saved: Tensor) -> None:
        as_bits(value).bitwise_and_(self.keep.to(bits_dtype(value))).bitwise_or_(saved)


class Boosted:
    """One parameter before a joint step, whose slow entries move `boost` times as far as the optimizer takes them."""

    def __init__(self, parameter: Tensor, bits: Tensor, boost: float) -> None:
        self.parameter, self.keep, self.boost = parameter.detach(), bits, boost
        self.before = self.parameter.clone()

    def put_back(self, state: State) -> None:
        """Scale the displacement of slow entries."""
        moved = self.parameter - self.before
        as_bits(moved).bitwise_and_(self.keep.bitwise_not())
        self.parameter.add_(moved, alpha=self.boost - 1)
