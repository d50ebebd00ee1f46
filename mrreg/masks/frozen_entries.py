"""Keep slow entries, and the optimizer's state of them, bit-identical through a masked step; boost the joint step.

`MaskStepHooks` calls this for one parameter at a time, in the order of a step:

    before  mask_gradient                           the optimizer sees zero gradient at slow entries
            FrozenEntries.snapshot (masked step)    or .prepare_boost (joint step)
    after   FrozenEntries.restore                   slow entries back, or moved further
            MaskedGradient.restore                  the gradient back in its place

`bits` are integers as wide as an entry that broadcast over the parameter: -1 (all bits set) where kept, 0 where slow.
"""

from collections import defaultdict
from collections.abc import Iterator, MutableMapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mrreg.distributed.sharding import local
from mrreg.errors import invalid_state
from mrreg.masks.masked_tensor import ReusableBuffer, as_bits, bits_dtype

Group = dict[str, Any]
State = MutableMapping[str, Any]


def is_static_without_grad(optimizer: torch.optim.Optimizer, group: Group) -> bool:
    """Return True if entries without gradient and momentum do not move by a bit: SGD without weight decay."""
    more = group.get("weight_decay") or group.get("maximize") or group.get("fused")
    return type(optimizer) is torch.optim.SGD and not more


def has_slow_grad(parameter: Tensor, bits: Tensor) -> bool:
    """Return True if a slow entry has a gradient: something other than the masked forward made one."""
    grad = parameter.grad
    return grad is not None and bool(as_bits(local(grad)).bitwise_and(torch.bitwise_not(bits)).any())


class MaskedGradient(NamedTuple):
    """A parameter whose gradient is a masked copy for the time of a step.

    It is always a copy: nobody can say whether the gradient is also a neighbour's, a view of a flat buffer, or NumPy's.
    """

    parameter: Tensor
    gradient: Tensor
    copy: Tensor
    version: int

    def restore(self) -> None:
        """Put the gradient back, with what was written into its copy, unless the step has set another one."""
        if self.parameter.grad is self.copy and (_version(self.copy) == self.version or self.write_back()):
            self.parameter.grad = self.gradient

    def write_back(self) -> bool:
        """Write the values of the copy into the gradient; False if that cannot be written to."""
        try:
            with torch.no_grad():
                self.gradient.copy_(self.copy)
        except RuntimeError:  # one number that is expanded, or made in inference mode
            return False
        return True


def _version(value: Tensor) -> int:
    return 0 if value.is_inference() else value._version


def mask_gradient(parameter: Tensor, bits: Tensor, buffer: ReusableBuffer) -> MaskedGradient | None:
    """Give a parameter, for the time of a step, a copy of its gradient with zeros at slow entries.

    The backward pass of a mask has put zeros there already, but a penalty or noise may have come on top of it.
    """
    grad = parameter.grad
    if grad is None:
        return None
    if grad.layout is not torch.strided:
        problem = f"a masked weight {tuple(parameter.shape)} has a sparse gradient"
        raise invalid_state("attach", problem, "Single entries of it cannot be held: make it dense.")
    copy = buffer.empty_like(grad.detach())
    torch.bitwise_and(as_bits(local(grad)), _fit(bits, grad), out=as_bits(local(copy)))
    parameter.grad = copy
    return MaskedGradient(parameter, grad, copy, _version(copy))


class FrozenEntries:
    """The slow entries of one parameter: what a step must not change, or must move further."""

    def __init__(self) -> None:
        self._memory: defaultdict[str, ReusableBuffer] = defaultdict(ReusableBuffer)
        self._saved: dict[str, tuple[Tensor, Tensor]] = {}  # tensors, and what they held before the step
        self._boost: float | None = None  # of a joint step; None on masked ones
        self._is_static = False

    def snapshot(self, parameter: Tensor, state: State, bits: Tensor, is_static: bool) -> None:
        """Remember, before a masked step, the slow entries of the parameter and of its state.

        If entries without gradient and momentum stay where they are (`is_static`), it is cheaper to take the momentum
        away for the step than to undo what it does.
        """
        self._boost, self._saved, self._is_static = None, {}, is_static
        tensors = [(name, value) for name, value in _shaped(parameter, state) if name or not is_static]
        slow = self._slow(bits) if tensors else bits
        for name, value in tensors:
            saved = self._memory[name].empty_like(value)
            torch.bitwise_and(as_bits(value), _fit(slow, value), out=as_bits(saved))
            self._saved[name] = value, saved
            if is_static:
                as_bits(value).bitwise_and_(_fit(bits, value))

    def prepare_boost(self, parameter: Tensor, boost: float) -> None:
        """Prepare for a joint step, which moves slow entries `boost` times as far as the optimizer takes them."""
        here = local(parameter)
        self._boost, self._saved = boost, {"": (here, self._memory[""].empty_like(here).copy_(here))}

    def restore(self, parameter: Tensor, state: State, bits: Tensor, decayed: bool) -> None:
        """Put the slow entries back after the step, or move them further."""
        if self._boost is not None:
            here = local(parameter)
            moved = self._saved.pop("")[1].sub_(here)  # backwards
            as_bits(moved).bitwise_and_(self._slow(bits))
            here.sub_(moved, alpha=self._boost - 1)
            return
        for name, value in _shaped(parameter, state):
            if name in self._saved:
                _replace_slow(value, self._saved.pop(name)[1], _fit(bits, value))
            elif not self._is_static and (decayed or has_slow_grad(parameter, bits)):
                # state that this step has made, from decayed weights or a gradient that a closure wrote
                as_bits(value).bitwise_and_(_fit(bits, value))

    def unmasked_state(self, bits: Tensor) -> dict[str, Tensor]:
        """Return the state in the middle of a step, with its slow entries as they were before."""
        return {
            name: _replace_slow(v.clone(), saved, _fit(bits, v)) for name, (v, saved) in self._saved.items() if name
        }

    def abandon(self, bits: Tensor) -> None:
        """Put the slow entries of the state back after a step that failed; the parameter may have been loaded since."""
        while self._saved:
            name, (value, saved) = self._saved.popitem()
            if name:
                _replace_slow(value, saved, _fit(bits, value))

    def _slow(self, bits: Tensor) -> Tensor:
        """Return the complement of the bits: set where entries are slow."""
        return torch.bitwise_not(bits, out=self._memory["slow bits"].empty_like(bits))


def _shaped(parameter: Tensor, state: State) -> Iterator[tuple[str, Tensor]]:
    """Yield the parameter and the state tensors with one entry for each of its own."""
    yield "", local(parameter)
    for name, value in state.items():
        if isinstance(value, Tensor) and value.shape == parameter.shape and name != "step":
            yield name, local(value)


def _replace_slow(value: Tensor, saved: Tensor, bits: Tensor) -> Tensor:
    """Write saved slow entries over a tensor: a select in one pass, since bits are -1 and 0."""
    here = as_bits(value)
    torch.addcmul(as_bits(saved), here, bits, value=-1, out=here)
    return value


def _fit(bits: Tensor, value: Tensor) -> Tensor:
    """Return bits as wide as the value's entries: state may be kept in another precision."""
    return bits.to(bits_dtype(value))
