"""`requires_grad` of the parameters that a multirate optimizer switches, and its return to the user."""

from collections.abc import Iterable, Iterator, MutableMapping

from torch import Tensor
from torch.utils.weak import TensorWeakRef, WeakIdKeyDictionary


class _Flag:
    """What we last set `requires_grad` of one parameter to."""

    __slots__ = ("on",)

    def __init__(self, on: bool) -> None:
        self.on = on


# One entry per parameter, whichever optimizer switches it: an optimizer that is built while an older one still holds
# parameters switched off (a notebook cell run twice) must see that they are trainable, and the older one must let go.
_current: MutableMapping[Tensor, _Flag] = WeakIdKeyDictionary()


class Flags:
    """The flags of groups of parameters, set per group; only those that were trainable at the start are touched.

    A flag that differs from what we last set was set by the user: a parameter that the user froze stays frozen until
    the user says otherwise, and one switched on early stays on until its next sync step is over. Parameters are held
    weakly, so that a finalizer may hold this object.
    """

    def __init__(self, groups: Iterable[Iterable[Tensor]]) -> None:
        trainable = [[p for p in group if _trainable(p)] for group in groups]
        self._groups = [[(TensorWeakRef(p), _take(p, p.requires_grad)) for p in group] for group in trainable]
        self._wanted: list[bool | None] = [None] * len(self._groups)

    def set(self, index: int, on: bool) -> None:
        """Switch one group on or off."""
        if self._wanted[index] is on:
            return
        self._wanted[index] = on
        for p, flag in self._held(index):
            if p.requires_grad is flag.on:
                p.requires_grad_(on)
                flag.on = on
            elif on and p.requires_grad:  # switched on by the user while we had it off: ours again
                flag.on = True

    def restore(self) -> None:
        """Switch everything on, as it was at the start."""
        for index in range(len(self._groups)):
            self.set(index, True)

    def saved(self) -> list[list[tuple[Tensor, bool]]]:
        """The parameters with what we last set, for copies."""
        return [[(p, flag.on) for p, flag in self._held(index)] for index in range(len(self._groups))]

    @classmethod
    def from_saved(cls, groups: list[list[tuple[Tensor, bool]]]) -> "Flags":
        """The flags of a copy, whose parameters are copies too."""
        flags = cls([[] for _ in groups])
        flags._groups = [[(TensorWeakRef(p), _take(p, on)) for p, on in group] for group in groups]
        return flags

    def _held(self, index: int) -> Iterator[tuple[Tensor, _Flag]]:
        """Those of a group that are alive and that no later optimizer took over."""
        for reference, flag in self._groups[index]:
            p = reference()
            if p is not None and _current.get(p) is flag:
                yield p, flag


def _trainable(p: Tensor) -> bool:
    """Whether the user has it trainable; one that is off may have been switched off by an earlier optimizer."""
    flag = _current.get(p)
    return p.requires_grad or (flag is not None and not flag.on)


def _take(p: Tensor, on: bool) -> _Flag:
    """Own the flag from now on."""
    flag = _current[p] = _Flag(on)
    return flag
