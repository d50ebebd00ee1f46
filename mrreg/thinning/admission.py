"""Which groups can be left out of a model, alone and all at once, and which attributes change with them."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import nn

from mrreg.masks.slots import AttributeOverride, UnitGroup
from mrreg.thinning.double_copy import Inputs, randomize
from mrreg.thinning.overrides import OverrideSearch
from mrreg.thinning.trial import Trial


class Admission(NamedTuple):
    """What came of trying groups.

    Args:
        groups: Those that can be left out together.
        overrides: The attributes that change with each of them, by the group's name.
        reasons: Why the others cannot, by name.
    """

    groups: list[UnitGroup]
    overrides: dict[str, list[AttributeOverride]]
    reasons: dict[str, str]


def admit(twin: nn.Module, inputs: Inputs, groups: Sequence[UnitGroup], tick: Callable[[str], None]) -> Admission:
    """Try groups with the numbers of units that they would keep: all at once, and one by one where that fails."""
    result = Admission([], {}, {})
    trial = Trial(twin, inputs, groups)
    if trial.with_noise(groups):
        for group in groups:
            randomize(twin)
            tick(f"trying {group.name}")
            if reason := Trial(twin, inputs, [group]).with_noise([group]):
                result.reasons[group.name] = reason
        randomize(twin)
        groups = [group for group in groups if group.name not in result.reasons]
        trial = Trial(twin, inputs, groups)
    candidates = list(groups)
    if not trial.thin(candidates, []):
        result.groups.extend(candidates)
        result.overrides.update({group.name: [] for group in candidates})
        return result
    search = OverrideSearch(twin, trial.tensors)
    for group in candidates:
        tick(f"trying {group.name}")
        found, reason = search.fewest(group, lambda overrides, group=group: trial.thin([group], overrides))
        if reason:
            result.reasons[group.name] = reason
        else:
            result.groups.append(group)
            result.overrides[group.name] = found
    _together(trial, result)
    return result


def _together(trial: Trial, result: Admission) -> None:
    """Take out the groups that cannot be left out along with those before them."""

    def reason(groups: Sequence[UnitGroup]) -> str:
        return trial.thin(groups, [each for group in groups for each in result.overrides[group.name]])

    if not reason(result.groups):
        return
    tried, result.groups[:] = list(result.groups), []
    for group in tried:
        if found := reason([*result.groups, group]):
            result.reasons[group.name] = f"not along with the others: {found}"
            del result.overrides[group.name]
        else:
            result.groups.append(group)
