"""Counts of units that modules keep as integer attributes, which have to change where units are left out."""

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations

from torch import Tensor, nn

from mrreg.masks.groups import AttributeOverride, UnitGroup

Key = tuple[str, str]  # path of a module without the numbers of its layers, attribute
MOST = 3  # attributes that one group may need to change


class OverrideSearch:
    """Finds the fewest attributes that have to change for a group, and tries first what served another group.

    Args:
        model: Owner of the attributes.
        tensors: Its parameters and buffers by name.
    """

    def __init__(self, model: nn.Module, tensors: dict[str, Tensor]) -> None:
        self.model, self.tensors = model, tensors
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
        for choice in self._choices(keys) if keys not in self._failed else ():
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
        """Integer attributes of owners and ancestors that are the number of units, a slot's width or a third of it."""
        values = {group.units: group.kept}
        for slot in group.slots:
            width = self.tensors[slot.name].shape[slot.dim]
            for part in (width, width // 3 if width % 3 == 0 else width):
                if part * group.kept % group.units == 0:
                    values[part] = part * group.kept // group.units
        paths: dict[str, None] = {}
        for slot in group.slots:
            path = slot.name
            while path:
                path = path.rpartition(".")[0]
                paths[path] = None
        found: dict[Key, list[AttributeOverride]] = {}
        for path in paths:
            for name, value in vars(self.model.get_submodule(path)).items():
                if type(value) is int and value in values and not name.startswith("_"):
                    key = re.sub(r"\d+", "#", path), name
                    found.setdefault(key, []).append(AttributeOverride(path, name, values[value]))
        return found
