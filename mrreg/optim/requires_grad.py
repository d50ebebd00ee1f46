"""Switching `requires_grad` of slow parameters, and its return to the user."""

import functools
import warnings
import weakref
from collections.abc import Iterable, Iterator, MutableMapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.weak import TensorWeakRef, WeakIdKeyDictionary

from mrreg.errors import NoEffectWarning


class _Flag:
    """Value that `requires_grad` of a parameter was last set to, and the switch that did."""

    __slots__ = ("on", "owner")

    on: bool
    owner: object


# One entry per parameter, whichever optimizer switches it: an optimizer that is built while an older one still holds
# parameters switched off (a notebook cell run twice) must see that they are trainable, and the older one must let go.
_flags: MutableMapping[Tensor, _Flag] = WeakIdKeyDictionary()


class RequiresGradSwitch:
    """`requires_grad` of groups of parameters, set per group; only those that were trainable at first are touched.

    A flag that differs from what we last set was set by the user: a parameter that the user froze stays frozen until
    the user says otherwise, and one switched on early stays on until its next sync step is over.
    """

    def __init__(self, groups: Iterable[Iterable[tuple[Tensor, bool]]]) -> None:
        self.owner = object()
        self._groups = [[(p, _take(p, on, self.owner)) for p, on in group] for group in groups]
        self._wanted: list[bool | None] = [None] * len(self._groups)

    @classmethod
    def of(cls, groups: Iterable[Iterable[Tensor]]) -> "RequiresGradSwitch":
        """Take parameters as the user gives them."""
        return cls([[(p, p.requires_grad) for p in group if _trainable(p)] for group in groups])

    def for_copy(self) -> list[list[tuple[Tensor, bool]]]:
        """Return what a copy is made of."""
        return [[(p, flag.on) for p, flag in group] for group in self._groups]

    def trainable(self, index: int) -> list[Tensor]:
        """Return the parameters of one group that are switched."""
        return [p for p, _ in self._groups[index]]

    def switched(self, groups: list[dict[str, Any]]) -> Iterator[Tensor]:
        """Yield the parameters that are without a gradient between sync steps."""
        for index, group in enumerate(groups):
            if group["period"] > 1 and group["gradient"] == "sync":
                yield from self.trainable(index)

    def set(self, index: int, on: bool) -> None:
        """Switch one group on or off."""
        if self._wanted[index] is not on:
            self._wanted[index] = on
            for p, flag in self._groups[index]:
                if flag.owner is self.owner:
                    _switch(p, flag, on)

    def restore(self) -> None:
        """Switch everything on, as it was at first."""
        for index in range(len(self._groups)):
            self.set(index, True)

    def restorer(self) -> "Restorer":
        """Return a function that restores the flags when the optimizer is gone."""
        return Restorer(self.owner, [(TensorWeakRef(p), flag) for group in self._groups for p, flag in group])


class Restorer:
    """Switches parameters on that still belong to an optimizer; keeps neither them nor it alive."""

    def __init__(self, owner: object, flags: list[tuple[TensorWeakRef, _Flag]]) -> None:
        self._owner = owner
        self._flags = flags

    def __call__(self) -> None:
        """Switch on."""
        for reference, flag in self._flags:
            p = reference()
            if p is not None and flag.owner is self._owner:
                _switch(p, flag, True)


def _switch(p: Tensor, flag: _Flag, on: bool) -> None:
    """Set the flag unless the user did."""
    if p.requires_grad is flag.on:
        p.requires_grad_(on)
        flag.on = on
    elif on and p.requires_grad:  # switched on by the user while we had it off: ours again
        flag.on = True


def _trainable(p: Tensor) -> bool:
    """Tell if the user trains it: one that is off may have been switched off by an earlier optimizer."""
    flag = _flags.get(p)
    return p.requires_grad or (flag is not None and not flag.on)


def _take(p: Tensor, on: bool, owner: object) -> _Flag:
    """Make this owner the one that switches a parameter."""
    flag = _flags.setdefault(p, _Flag())
    flag.on, flag.owner = on, owner
    return flag


_checked: weakref.WeakSet[Optimizer] = weakref.WeakSet()  # optimizers that were seen stepping


@functools.cache
def watch_others() -> None:
    """Check every optimizer's first step: training that ended in mid-cycle may have left parameters switched off."""
    register_optimizer_step_pre_hook(_warn_if_switched_off)


def _warn_if_switched_off(optimizer: Optimizer, *_: object) -> None:
    if torch.compiler.is_compiling() or optimizer in _checked:
        return
    _checked.add(optimizer)
    params = [p for group in optimizer.param_groups for p in group["params"]]
    off = [p for p in params if not p.requires_grad and p.grad is None and _trainable(p)]
    if off and not hasattr(optimizer, "due"):
        message = (
            f"{type(optimizer).__name__}.step: {len(off)} parameters get no gradient, since a Multirate that is still "
            "there has switched them off between two of their gradients. Call close() on it, or delete it."
        )
        warnings.warn(message, NoEffectWarning, stacklevel=3)
