"""Switching `requires_grad` of slow parameters, and its return to the user."""

import functools
import warnings
import weakref
from collections.abc import Collection, Iterable, Iterator, MutableMapping
from dataclasses import dataclass
from typing import Any, Optional

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.weak import TensorWeakRef, WeakIdKeyDictionary

from mrreg.errors import NoEffectWarning


@dataclass
class _Flag:
    """Value that `requires_grad` of a parameter was last set to, and the switch that did; None once it has let go."""

    on: bool
    owner: Optional["weakref.ref[RequiresGradSwitch]"]

    def show(self, p: Tensor) -> None:
        """Switch the parameter on if it is off; one that the user has switched on meanwhile is ours again."""
        if not self.on:
            p.requires_grad = True
            self.on = True

    def hide(self, p: Tensor) -> None:
        """Switch the parameter off, unless the user did."""
        if self.on and p.requires_grad:
            p.requires_grad = False  # not the method, which raises inside torch.func's transforms
            self.on = False


# One entry per parameter, whichever optimizer switches it: an optimizer that is built while an older one still holds
# parameters switched off (a notebook cell run twice) must see that they are trainable, and the older one must let go.
_flags: MutableMapping[Tensor, _Flag] = WeakIdKeyDictionary()


class RequiresGradSwitch:
    """`requires_grad` of groups of parameters, switched per group.

    A flag that differs from what was last set here was set by the user: a parameter that the user froze stays frozen
    until the user says otherwise, and one switched on early stays on until its group is shown and hidden again.
    """

    def __init__(self, groups: Iterable[Iterable[tuple[Tensor, bool]]]) -> None:
        self.owner = weakref.ref(self)
        self._groups = [[(p, self._take(p, on)) for p, on in group] for group in groups]
        self.at_rest = False  # flags are the user's except from a training forward to the end of its step
        self._hidden = set(range(len(self._groups)))
        self.show()  # what an older optimizer has switched off

    @classmethod
    def of(cls, groups: Iterable[Iterable[Tensor]]) -> "RequiresGradSwitch":
        """Take parameters as the user gives them, from older switches too."""
        given = [list(group) for group in groups]
        end_windows(p for group in given for p in group)
        # One that the user froze counts as on, so that its flag differs and is left alone.
        return cls([[(p, p.requires_grad or not _is_switched_off(p)) for p in group] for group in given])

    def _take(self, p: Tensor, on: bool) -> _Flag:
        """Become the owner of a parameter."""
        flag = _flags.setdefault(p, _Flag(on, self.owner))
        flag.on, flag.owner = on, self.owner
        return flag

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

    def _owned(self, indices: Iterable[int]) -> Iterator[tuple[Tensor, _Flag]]:
        return ((p, flag) for i in indices for p, flag in self._groups[i] if flag.owner is self.owner)

    def hide(self, indices: Collection[int]) -> None:
        """Switch groups off until they are shown."""
        for p, flag in self._owned(i for i in indices if i not in self._hidden):
            flag.hide(p)
        self._hidden.update(indices)

    def show(self, but: Collection[int] = ()) -> None:
        """Switch all groups on, but for those of some indices and for what the user froze."""
        for p, flag in self._owned(self._hidden.difference(but)):
            flag.show(p)
        self._hidden.intersection_update(but)

    @property
    def is_hiding(self) -> bool:
        """True if groups are hidden, unless the user has switched everything on meanwhile."""
        return any(not flag.on and not p.requires_grad for p, flag in self._owned(self._hidden))

    def count_switched_back(self) -> int:
        """Count the parameters that somebody else switched on in groups that are hidden."""
        return sum(p.requires_grad for p, _ in self._owned(self._hidden))

    def restore_at_end_of(self, optimizer: Optimizer) -> None:
        """Show everything once the optimizer is gone; until then keep neither it nor parameters alive."""
        flags = [(TensorWeakRef(p), flag) for group in self._groups for p, flag in group]
        weakref.finalize(optimizer, _show_all, self.owner, flags).atexit = False


def _show_all(owner: "weakref.ref[RequiresGradSwitch]", flags: list[tuple[TensorWeakRef, _Flag]]) -> None:
    for reference, flag in flags:
        p = reference()
        if p is not None and flag.owner is owner:
            flag.show(p)


def end_windows(params: Iterable[Tensor]) -> None:
    """Let optimizers that switch flags off for the time of a step only give parameters back at once."""
    for switch in {switch for p in params if (switch := _switch_of(p)) is not None and switch.at_rest}:
        switch.show()


def _switch_of(p: Tensor) -> RequiresGradSwitch | None:
    """Return the switch that owns a parameter."""
    flag = _flags.get(p)
    return None if flag is None or flag.owner is None else flag.owner()


def _is_switched_off(p: Tensor) -> bool:
    """Return True if an optimizer switched it off: the user trains it although its flag says no."""
    flag = _flags.get(p)
    return flag is not None and not flag.on and not p.requires_grad


_checked: weakref.WeakSet[Optimizer] = weakref.WeakSet()  # optimizers that need no look at their steps any more


@functools.cache
def watch_others() -> None:
    """Check the first steps of every optimizer: a `Multirate` may have switched its parameters off."""
    register_optimizer_step_pre_hook(_give_back_to_other)


def _give_back_to_other(optimizer: Optimizer, *_: object) -> None:
    if torch.compiler.is_compiling() or optimizer in _checked:
        return
    is_multirate = hasattr(optimizer, "due")
    params = [] if is_multirate else [p for group in optimizer.param_groups for p in group["params"]]
    owners = {id(p): switch for p in params if (switch := _switch_of(p)) is not None and switch.at_rest}
    off = [p for p in params if _is_switched_off(p) and (p.grad is None or id(p) in owners)]
    if off or not owners:
        _checked.add(optimizer)
    if not off:
        return
    for p in params:
        if id(p) in owners:
            owners[id(p)].show()
            _flags[p].owner = None
    closed = "It leaves them alone from now on." if owners else "Call close() on it, or delete it."
    message = (
        f"{type(optimizer).__name__}.step: {len(off)} parameters get no gradient, since a Multirate that still "
        f"exists has switched them off between two of their gradients. {closed}"
    )
    warnings.warn(message, NoEffectWarning, stacklevel=3)
