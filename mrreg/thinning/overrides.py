"""Counts of units that modules keep as attributes, numbers or lists of them, which have to change with the units."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import combinations, islice
from typing import Any, NamedTuple

from torch import nn

from mrreg.masks.groups import AttributeOverride, UnitGroup

Key = tuple[str, str]  # path of a module with other numbers of layers, attribute
NUMBER = re.compile(r"\d+")
MOST = 3  # keys of attributes that one group may need to change
TRIES = 40  # choices of keys that are tried for one group, those of fewer keys first


class Attempt(NamedTuple):
    """A group that is left out along with a change of attributes, or zeroed for a reason."""

    group: UnitGroup
    overrides: Sequence[AttributeOverride] = ()
    reason: str = ""


def zeroed(group: UnitGroup, reason: str) -> Attempt:
    """Return the attempt to zero a group that cannot be left out."""
    return Attempt(replace(group, zeroed=True), (), reason)


class OverrideSearch:
    """Finds the fewest attributes that have to change for a group, and tries first what served another group."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.read = set[Key]()  # attributes that forwards read, by the path of the module
        self._served: list[tuple[Key, ...]] = []
        self._failed: dict[object, str] = {}  # by what groups have in common that lie alike in all layers

    def guess(self, group: UnitGroup) -> Attempt:
        """Return what served the last group of this kind."""
        candidates = self.candidates(group)
        choice = next((each for each in self._served if set(each) <= set(candidates)), ())
        return Attempt(group, [each for key in choice for each in candidates[key]])

    def doubts(self, group: UnitGroup) -> bool:
        """Tell if a group like this one has failed."""
        return _alike(group) in self._failed

    def fewest(self, group: UnitGroup, fault: Callable[[Attempt], str]) -> Attempt:
        """Return the attempt with the fewest overrides that has no fault, or to zero with that without any."""
        reason = fault(Attempt(group))
        candidates = self.candidates(group) if reason and self._failed.get(_alike(group)) != reason else {}
        for choice in islice(self._choices(tuple(candidates)), TRIES):
            attempt = Attempt(group, [each for key in choice for each in candidates[key]])
            if not fault(attempt):
                self._served.insert(0, choice)
                return attempt
        if not reason:
            return Attempt(group)
        self._failed[_alike(group)] = reason
        return zeroed(group, reason)

    def _choices(self, keys: tuple[Key, ...]) -> Iterator[tuple[Key, ...]]:
        yield from (choice for choice in self._served if set(choice) <= set(keys))
        for size in range(1, MOST + 1):
            yield from combinations(keys, size)

    def candidates(self, group: UnitGroup) -> dict[Key, list[AttributeOverride]]:
        """Attributes of owners and ancestors that count units, once or several times, in all layers or in one.

        A count is a multiple of the number of units that divides the width of a slot. In a key, numbers of layers are
        counted from those of the first slot.
        """
        owners = [slot.name.split(".")[:-1] for slot in group.slots]
        first = [int(part) for part in owners[0] if part.isdecimal()]
        paths = dict.fromkeys(".".join(parts[:n]) for parts in owners for n in range(len(parts), -1, -1))
        widths = {width for slot in group.slots for width in (slot.length, slot.indices.numel())}
        everywhere: dict[Key, list[AttributeOverride]] = {}
        somewhere: dict[Key, list[AttributeOverride]] = {}
        for path in paths:
            relative = _relative(path, first)
            for name, value in vars(self.model.get_submodule(path)).items():
                small = _smaller(value, group, widths) if (path, name) in self.read else None
                if small is not None:
                    override = AttributeOverride(path, name, small)
                    everywhere.setdefault((NUMBER.sub("#", path), name), []).append(override)
                    somewhere.setdefault((relative, name), []).append(override)
        shared = list(everywhere.values())
        return everywhere | {key: found for key, found in somewhere.items() if found not in shared}


@contextmanager
def reads_noted(model: nn.Module) -> Iterator[set[Key]]:
    """Note which attributes of modules are read inside a `with` block."""
    found, plain = set[Key](), {path: (module, type(module)) for path, module in model.named_modules()}
    for path, (module, kind) in plain.items():

        def note(self: Any, name: str, path: str = path, kind: Any = kind) -> Any:
            found.add((path, name))
            return kind.__getattribute__(self, name)

        metaclass: Any = type(kind)
        module.__class__ = metaclass(kind.__name__, (kind,), {"__getattribute__": note})
    try:
        yield found
    finally:
        for module, kind in plain.values():
            module.__class__ = kind


def _alike(group: UnitGroup) -> object:
    return tuple((NUMBER.sub("#", slot.name), slot.dim) for slot in group.slots)


def _relative(path: str, first: Sequence[int]) -> str:
    numbers = iter(first)
    return NUMBER.sub(lambda found: f"{int(found[0]) - next(numbers, 0):+}", path)


def _smaller(value: Any, group: UnitGroup, widths: set[int]) -> Any:
    """Return a count, or a list of some, for the units that are kept; None for what counts no units."""
    if type(value) in (list, tuple):
        sizes = [_smaller(each, group, widths) for each in value if type(each) is int]
        fits = len(sizes) == len(value) > 0 and None not in sizes
        return type(value)(sizes) if fits else None
    counts = type(value) is int and value > 0 and value % group.units == 0 and any(w % value == 0 for w in widths)
    return value * group.kept // group.units if counts else None
