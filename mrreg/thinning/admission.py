"""Find the groups that can be left out of a model, alone and all at once, and the attributes that change with them.

What cannot be left out, such as heads whose number is written into a shape, is zeroed: its units are computed, and the
columns that read those that are absent are zero.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from torch import nn

from mrreg.masks.groups import AttributeOverride, UnitGroup
from mrreg.thinning.double_copy import Inputs, randomize
from mrreg.thinning.overrides import OverrideSearch
from mrreg.thinning.paths import find_paths
from mrreg.thinning.trial import Trial


class Admission(NamedTuple):
    """Outcome of trying groups.

    Args:
        groups: Those that can be left out together, or zeroed.
        overrides: The attributes that change with each of them, by the group's name.
        reasons: Obstacles of the others, by name; of groups that are zeroed, why they cannot be left out.
        trial: The trial that they went through.
    """

    groups: list[UnitGroup]
    overrides: dict[str, list[AttributeOverride]]
    reasons: dict[str, str]
    trial: Trial


def admit(twin: nn.Module, inputs: Inputs, groups: Sequence[UnitGroup], tick: Callable[[str], None]) -> Admission:
    """Try groups with the numbers of units that they would keep: all at once, and one by one where that fails."""
    randomize(twin)
    paths = find_paths(twin, inputs)
    trial = Trial(twin, inputs, groups, paths)
    reasons: dict[str, str] = {}
    if trial.with_noise(groups):
        for group in groups:
            randomize(twin)
            tick(f"trying {group.name}")
            if reason := Trial(twin, inputs, [group], paths).with_noise([group]):
                reasons[group.name] = reason
        randomize(twin)
        groups = [group for group in groups if group.name not in reasons]
        trial = Trial(twin, inputs, groups, paths)
    return _admit(trial, groups, reasons, tick)


def _admit(
    trial: Trial, groups: Sequence[UnitGroup], reasons: dict[str, str], tick: Callable[[str], None]
) -> Admission:
    """Look for the attributes that have to change, group by group, until what was learned is enough for all."""
    search = OverrideSearch(trial.twin, trial.tensors)
    overrides: dict[str, list[AttributeOverride]] = {}
    tried: Mapping[str, list[AttributeOverride]] | None = None
    for group in groups:
        tick(f"trying {group.name}")
        guess = {each.name: overrides.get(each.name, search.guess(each)) for each in groups if each.name not in reasons}
        if guess != tried and not _fault(trial, groups, guess):
            return _outcome(trial, groups, guess, reasons)
        tried = guess
        overrides[group.name], reason = search.fewest(group, partial(trial.thin, [group]))
        if reason:
            reasons[group.name] = reason
    together = _together(trial, [group for group in groups if group.name not in reasons], overrides, reasons)
    return _outcome(trial, groups, {group.name: overrides[group.name] for group in together}, reasons)


def _outcome(
    trial: Trial,
    groups: Sequence[UnitGroup],
    overrides: dict[str, list[AttributeOverride]],
    reasons: dict[str, str],
) -> Admission:
    """Zero the groups that cannot be left out: noise in their absent units has been seen to have no effect."""
    admitted = [group if group.name in overrides else replace(group, zeroed=True) for group in groups]
    return Admission(admitted, {group.name: overrides.get(group.name, []) for group in groups}, reasons, trial)


def _together(
    trial: Trial,
    groups: Sequence[UnitGroup],
    overrides: Mapping[str, list[AttributeOverride]],
    reasons: dict[str, str],
) -> list[UnitGroup]:
    """Return the groups that can be left out along with those before them."""
    if not _fault(trial, groups, overrides):
        return list(groups)
    together: list[UnitGroup] = []
    for group in groups:
        if fault := _fault(trial, [*together, group], overrides):
            reasons[group.name] = f"not along with the others: {fault}"
        else:
            together.append(group)
    return together


def _fault(trial: Trial, groups: Sequence[UnitGroup], overrides: Mapping[str, list[AttributeOverride]]) -> str:
    present = [group for group in groups if group.name in overrides]
    return trial.thin(present, [each for group in present for each in overrides[group.name]])
