"""Switching `requires_grad` of slow parameters, and its return to the user."""

import functools
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from typing import Any, Optional

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.weak import TensorWeakRef, WeakIdKeyDictionary

from mrreg.errors import NoEffectWarning

Owner = Callable[[], Optional["RequiresGradSwitch"]]  # a weak reference, or NOBODY


def NOBODY() -> None:  # noqa: N802  # stands for a weak reference whose object is gone
    """Own parameters that were given back."""


class _Flag:
    """Value that `requires_grad` of a parameter was last set to, and the switch that did."""

    __slots__ = ("on", "owner")

    on: bool
    owner: Owner


# One entry per parameter, whichever optimizer switches it: an optimizer that is built while an older one still holds
# parameters switched off (a notebook cell run twice) must see that they are trainable, and the older one must let go.
_flags: MutableMapping[Tensor, _Flag] = WeakIdKeyDictionary()


class RequiresGradSwitch:
    """`requires_grad` of groups of parameters, switched per group.

    A flag that differs from what was last set here was set by the user: a parameter that the user froze stays frozen
    until the user says otherwise, and one switched on early stays on until its next sync step is over.
    """

    def __init__(self, groups: Iterable[Iterable[tuple[Tensor, bool]]]) -> None:
        self.owner: Owner = weakref.ref(self)
        self._groups = [[(p, _take(p, on, self.owner)) for p, on in group] for group in groups]
        self._wanted: list[bool | None] = [None] * len(self._groups)
        self._off: list[tuple[Tensor, _Flag]] = []  # switched off by `hide_gradients`
        self.at_rest = False  # flags are the user's except from a training forward to the end of its step

    @classmethod
    def of(cls, groups: Iterable[Iterable[Tensor]]) -> "RequiresGradSwitch":
        """Take parameters as the user gives them, from older switches too."""
        given = [list(group) for group in groups]
        end_windows(p for group in given for p in group)
        # One that the user froze counts as on, so that its flag differs and is left alone.
        return cls([[(p, p.requires_grad or not _is_switched_off(p)) for p in group] for group in given])

    def for_copy(self) -> list[list[tuple[Tensor, bool]]]:
        """Return parameters and flags, from which a copy is made."""
        return [[(p, flag.on) for p, flag in group] for group in self._groups]

    def trainable(self, index: int) -> list[Tensor]:
        """Return the parameters of one group that the user trains."""
        return [p for p, flag in self._groups[index] if p.requires_grad or not flag.on]

    def switched(self, groups: list[dict[str, Any]]) -> Iterator[Tensor]:
        """Yield the parameters that are without a gradient between sync steps."""
        for index, group in enumerate(groups):
            if group["period"] > 1 and group["gradient"] == "sync":
                yield from self.trainable(index)

    def set(self, index: int, on: bool) -> None:
        """Switch one group on or off until further notice."""
        if self._wanted[index] is not on:
            self._wanted[index] = on
            for p, flag in self._groups[index]:
                if flag.owner is self.owner:
                    _switch(p, flag, on)

    def count_switched_back(self) -> int:
        """Count the parameters that somebody else switched on in groups that are off."""
        off = [group for group, wanted in zip(self._groups, self._wanted, strict=True) if wanted is False]
        return sum(p.requires_grad for group in off for p, flag in group if flag.owner is self.owner)

    @property
    def is_hiding(self) -> bool:
        """True between `hide_gradients` and `restore`, unless the user has switched everything on meanwhile."""
        return bool(self._off) and not self._off[0][0].requires_grad

    def hide_gradients(self, indices: Iterable[int]) -> None:
        """Switch groups off until `restore`; parameters that the user froze are never switched on by it."""
        owner, off = self.owner, self._off
        for index in indices:
            for p, flag in self._groups[index]:
                if p.requires_grad and flag.owner is owner:
                    p.requires_grad = False  # not the method, which raises inside torch.func's transforms
                    if flag.on:
                        flag.on = False
                        off.append((p, flag))

    def restore(self) -> None:
        """Switch everything on that is off, but for what the user froze."""
        owner = self.owner
        for p, flag in self._off:
            if flag.owner is owner:
                p.requires_grad = True
                flag.on = True
        self._off = []
        for index in range(len(self._groups)):
            self.set(index, True)

    def restorer(self) -> "Restorer":
        """Return a function that restores the flags when the optimizer is gone."""
        return Restorer(self.owner, [(TensorWeakRef(p), flag) for group in self._groups for p, flag in group])


class Restorer:
    """Switches parameters on that still belong to an optimizer; keeps neither them nor it alive."""

    def __init__(self, owner: Owner, flags: list[tuple[TensorWeakRef, _Flag]]) -> None:
        self._owner = owner
        self._flags = flags

    def __call__(self) -> None:
        """Switch on."""
        for reference, flag in self._flags:
            p = reference()
            if p is not None and flag.owner is self._owner:
                _switch(p, flag, True)


def end_windows(params: Iterable[Tensor]) -> None:
    """Let optimizers that switch flags off for the time of a step only give parameters back at once."""
    for switch in {switch for p in params if (switch := _switch_of(p)) is not None and switch.at_rest}:
        switch.restore()


def _switch_of(p: Tensor) -> RequiresGradSwitch | None:
    """Return the switch that owns a parameter."""
    flag = _flags.get(p)
    return None if flag is None else flag.owner()


def _switch(p: Tensor, flag: _Flag, on: bool) -> None:
    """Set the flag unless the user did."""
    if p.requires_grad is flag.on:
        p.requires_grad = on
        flag.on = on
    elif on and p.requires_grad:  # switched on by the user while we had it off: ours again
        flag.on = True


def _is_switched_off(p: Tensor) -> bool:
    """Tell if an optimizer switched it off, so that the user trains it although its flag says no."""
    flag = _flags.get(p)
    return flag is not None and not flag.on and not p.requires_grad


def _take(p: Tensor, on: bool, owner: Owner) -> _Flag:
    """Make this owner the one that switches a parameter."""
    flag = _flags.setdefault(p, _Flag())
    flag.on, flag.owner = on, owner
    return flag


_checked: weakref.WeakSet[Optimizer] = weakref.WeakSet()  # optimizers that need no look at their steps any more


@functools.cache
def watch_others() -> None:
    """Check the first steps of every optimizer: a `Multirate` may have switched its parameters off."""
    register_optimizer_step_pre_hook(_give_back_to_other)


def _give_back_to_other(optimizer: Optimizer, *_: object) -> None:
    if torch.compiler.is_compiling() or optimizer in _checked:
        return
    if hasattr(optimizer, "due"):  # a `Multirate`
        _checked.add(optimizer)
        return
    params = [p for group in optimizer.param_groups for p in group["params"]]
    owners = {id(p): switch for p in params if (switch := _switch_of(p)) is not None and switch.at_rest}
    if not owners:
        _checked.add(optimizer)
    off = [p for p in params if _is_switched_off(p) and (p.grad is None or id(p) in owners)]
    if not off:
        return
    _checked.add(optimizer)
    for p in params:
        if id(p) in owners:
            owners[id(p)].restore()
            _flags[p].owner = NOBODY
    closed = "It leaves them alone from now on." if owners else "Call close() on it, or delete it."
    message = (
        f"{type(optimizer).__name__}.step: {len(off)} parameters get no gradient, since a Multirate that is still "
        f"there has switched them off between two of their gradients. {closed}"
    )
    warnings.warn(message, NoEffectWarning, stacklevel=3)
