"""Counts of units that modules keep as attributes, numbers or lists of them, which have to change with the units."""

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, islice
from typing import Any

from torch import nn

from mrreg.masks.groups import AttributeOverride, UnitGroup

Key = tuple[str, str]  # path of a module with other numbers of layers, attribute
MOST = 3  # keys of attributes that one group may need to change
TRIES = 40  # choices of keys that are tried for one group, those of fewer keys first


class OverrideSearch:
    """Finds the fewest attributes that have to change for a group, and tries first what served another group."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._served: list[tuple[Key, ...]] = []
        self._failed: set[tuple[Key, ...]] = set()

    def guess(self, group: UnitGroup) -> list[AttributeOverride]:
        """Return the overrides that served the last group of this kind; before that, none."""
        candidates = self._candidates(group)
        choice = next((each for each in self._served if set(each) <= set(candidates)), ())
        return [each for key in choice for each in candidates[key]]

    def fewest(
        self, group: UnitGroup, trial: Callable[[Sequence[AttributeOverride]], str]
    ) -> tuple[list[AttributeOverride], str]:
        """Return the overrides with which the trial finds no fault, or the fault that it finds without any."""
        reason = trial([])
        if not reason:
            return [], ""
        candidates = self._candidates(group)
        keys = tuple(candidates)
        for choice in islice(self._choices(keys), 0 if keys in self._failed else TRIES):
            overrides = [each for key in choice for each in candidates[key]]
            if not trial(overrides):
                self._served = [choice, *(each for each in self._served if each != choice)]
                return overrides, ""
        self._failed.add(keys)
        return [], reason

    def _choices(self, keys: tuple[Key, ...]) -> Iterator[tuple[Key, ...]]:
        yield from (choice for choice in self._served if set(choice) <= set(keys))
        for size in range(1, MOST + 1):
            yield from combinations(keys, size)

    def _candidates(self, group: UnitGroup) -> dict[Key, list[AttributeOverride]]:
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
                small = None if name.startswith("_") else _smaller(value, group, widths)
                if small is not None:
                    override = AttributeOverride(path, name, small)
                    everywhere.setdefault((re.sub(r"\d+", "#", path), name), []).append(override)
                    somewhere.setdefault((relative, name), []).append(override)
        shared = list(everywhere.values())
        return everywhere | {key: found for key, found in somewhere.items() if found not in shared}


def _relative(path: str, first: Sequence[int]) -> str:
    numbers = iter(first)
    return re.sub(r"\d+", lambda found: f"{int(found[0]) - next(numbers, 0):+}", path)


def _smaller(value: Any, group: UnitGroup, widths: set[int]) -> Any:
    """Return a count, or a list of some, for the units that are kept; None for what counts no units."""
    if type(value) in (list, tuple):
        sizes = [_smaller(each, group, widths) for each in value if type(each) is int]
        fits = len(sizes) == len(value) > 0 and None not in sizes
        return type(value)(sizes) if fits else None
    counts = type(value) is int and value > 0 and value % group.units == 0 and any(w % value == 0 for w in widths)
    return value * group.kept // group.units if counts else None
