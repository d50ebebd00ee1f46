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

GRADIENT = "grad"


def update_source(optimizer: torch.optim.Optimizer, group: Group) -> str:
    """Name the factor of -lr in an update, exact to the bit: GRADIENT or a state buffer; "" if it is neither."""
    if type(optimizer) is not torch.optim.SGD or group.get("maximize") or group.get("fused"):
        return ""
    if group.get("momentum"):
        return "" if group.get("nesterov") else "momentum_buffer"
    return "" if group.get("weight_decay") else GRADIENT


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
        self._slow = torch.empty(0)  # the complement of the bits
        self._drawn: object = None  # the cycle that `_slow` is of
        self._memory: defaultdict[str, ReusableBuffer] = defaultdict(ReusableBuffer)
        self._saved: dict[str, Tensor] = {}
        self._boost: float | None = None  # of a joint step; None on masked ones
        self._zeroed: list[tuple[str, Tensor, Tensor]] | None = None  # state that is zero at slow entries, and those
        self._source = ""  # name of the buffer that a joint step moves along
        self._group: Group = {}  # with the lr of that step
        self._spare = ReusableBuffer()

    def snapshot(self, parameter: Tensor, state: State, bits: Tensor, drawn: object, is_static: bool) -> None:
        """Remember, before a masked step, the slow entries of the parameter and of its state.

        If entries without gradient and momentum stay where they are (`is_static`), it is cheaper to take the momentum
        away for the step than to undo what it does.
        """
        self._boost, self._zeroed = None, [] if is_static else None
        self._set_slow(bits, drawn)
        for name, value in _shaped(parameter, state):
            if is_static and not name:
                continue
            saved = self._memory[name].empty_like(value)
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
        source: str,
        group: Group,
        spare: ReusableBuffer,
    ) -> None:
        """Prepare for a joint step, which moves slow entries `boost` times as far as the optimizer takes them.

        If the update is -lr times `source` (see `update_source`), nothing has to be remembered, and `spare`, memory of
        the parameter's size that is free after the step, is enough.
        """
        self._boost, self._source, self._group, self._zeroed, self._spare = boost, source, group, None, spare
        if not source:
            self._set_slow(bits, drawn)
            here = local(parameter)
            self._saved[""] = self._memory[""].empty_like(here).copy_(here)

    def restore(self, parameter: Tensor, state: State, bits: Tensor, decayed: bool) -> None:
        """Put the slow entries back after the step, or scale what they moved."""
        if self._boost is not None:
            self._push_slow(parameter, state, bits, self._boost - 1)
            return
        if self._zeroed is not None:
            self.rollback()
            return
        for name, value in _shaped(parameter, state):
            if name in self._saved:
                _replace_slow(value, self._saved.pop(name), _fit(bits, value))
            elif decayed or has_slow_grad(parameter, bits):
                # state that this step has made, from decayed weights or a gradient that a closure wrote
                as_bits(value).bitwise_and_(_fit(bits, value))

    def _push_slow(self, parameter: Tensor, state: State, bits: Tensor, further: float) -> None:
        """Move the slow entries `further` times as far again as they went."""
        here = local(parameter)
        if not self._source:
            moved = self._saved.pop("").sub_(here)  # backwards
            as_bits(moved).bitwise_and_(self._slow)
            here.sub_(moved, alpha=further)
        elif parameter.grad is not None:  # else it has not moved
            along = local(parameter.grad if self._source == GRADIENT else state[self._source])
            slow = self._spare.empty_like(along)
            torch.addcmul(as_bits(along), as_bits(along), bits, out=as_bits(slow))  # zero where bits are -1
            here.sub_(slow, alpha=float(self._group["lr"]) * further)

    def rollback(self) -> None:
        """Put slow entries of the state back where they were set to zero, also after a step that never ended."""
        while self._zeroed:
            _name, value, saved = self._zeroed.pop()
            as_bits(value).bitwise_or_(as_bits(saved))

    def unmasked_state(self) -> dict[str, Tensor]:
        """Return the state that is zero at slow entries now, with those entries back."""
        return {
            name: as_bits(value).bitwise_or(as_bits(saved)).view(value.dtype)
            for name, value, saved in self._zeroed or ()
        }

    def _set_slow(self, bits: Tensor, drawn: object) -> None:
        """Keep the bits of the slow entries from step to step; forget a step that never ended."""
        if drawn != self._drawn:
            self._slow = torch.empty(0)  # gives its memory back
            self._slow = torch.bitwise_not(bits, out=self._memory["slow bits"].empty_like(bits))
            self._drawn = drawn
        self._saved.clear()


def _shaped(parameter: Tensor, state: State) -> Iterator[tuple[str, Tensor]]:
    """Yield the parameter and the state tensors with one entry for each of its own."""
    yield "", local(parameter)
    for name, value in state.items():
        if isinstance(value, Tensor) and value.shape == parameter.shape and name != "step":
            yield name, local(value)


def _replace_slow(value: Tensor, saved: Tensor, bits: Tensor) -> None:
    """Write saved slow entries over a tensor: a select in one pass, since bits are -1 and 0."""
    here = as_bits(value)
    torch.addcmul(as_bits(saved), here, bits, value=-1, out=here)


def _fit(bits: Tensor, value: Tensor) -> Tensor:
    """Return bits as wide as the value's entries: state may be kept in another precision."""
    return bits.to(bits_dtype(value))
