"""Which groups can be left out of a model, alone and all at once, and the attributes that change with them.

What cannot be left out, such as heads whose number is written into a shape, is zeroed: its units are computed, and the
columns that read those that are absent are zero.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mrreg.masks.groups import AttributeOverride, UnitGroup
from mrreg.thinning.overrides import OverrideSearch
from mrreg.thinning.paths import NoDropout, Path, forward
from mrreg.thinning.trial import Trial, thinned
from mrreg.thinning.twin import Inputs, frozen, randomize, state_kept

Overrides = Mapping[str, Sequence[AttributeOverride]]  # by the name of the group that needs them


class Admission(NamedTuple):
    """Outcome of trying groups on some paths."""

    groups: list[UnitGroup]  # that can be left out together, or zeroed
    overrides: Overrides
    reasons: dict[str, str]  # obstacles of the others; of groups that are zeroed, why they cannot be left out
    paths: Sequence[Path]


def admit(twin: nn.Module, inputs: Inputs, groups: Sequence[UnitGroup], paths: Sequence[Path]) -> Admission:
    """Try groups with the numbers of units that they would keep: all at once, and one by one where that fails."""
    randomize(twin)
    trial = Trial(twin, inputs, groups, paths)
    reasons: dict[str, str] = {}
    if refused := _written_to(trial):
        reasons |= refused
        trial = _without(trial, refused)
    chosen: Overrides = {group.name: [] for group in trial.groups}
    if trial.fault(trial.groups):
        if trial.noise(trial.groups):
            reasons |= {group.name: reason for group in trial.groups if (reason := trial.noise([group]))}
            trial = _without(trial, reasons)
        chosen, refused = _search(trial, reasons)
        if refused:
            trial = _without(trial, refused)
            reasons |= refused
        chosen = _together(trial, chosen, reasons)
    if begun := _set_once(trial, chosen):
        reasons |= begun
        chosen = _together(trial, {name: each for name, each in chosen.items() if name not in begun}, reasons)
    trial.whole()
    return Admission(_as_chosen(trial.groups, chosen), chosen, reasons, paths)


def _written_to(trial: Trial) -> dict[str, str]:
    """Refuse groups whose parameters the forward writes to: a mask shows copies of them."""
    trial.whole()
    twin = trial.twin
    before = {name: each.detach().clone() for name, each in twin.named_parameters()}
    with frozen(twin), state_kept(twin):
        forward(twin, trial.inputs, trial.paths[0], NoDropout())
    with torch.no_grad():
        written = {name for name, each in twin.named_parameters() if not torch.equal(each, before[name])}
        for name in written:
            trial.tensors[name].copy_(before[name])
    names = {group.name: written & {slot.name for slot in group.slots} for group in trial.groups}
    return {name: f"the forward writes to the parameter {min(found)}" for name, found in names.items() if found}


def _set_once(trial: Trial, chosen: Overrides) -> dict[str, str]:
    """Refuse to leave out what a whole forward sets in buffers, but not if a masked one came before."""
    groups = [group for group in trial.groups if group.name in chosen and not group.keeps_shape]
    places = [(g, s) for g in groups for s in g.slots if not isinstance(trial.tensors[s.name], nn.Parameter)]
    if not places:
        return {}
    trial.whole()
    overrides = list(chain(*chosen.values()))
    with frozen(trial.twin):
        whole = _written(trial, None)
        later = _written(trial, thinned(trial.twin, _as_chosen(trial.groups, chosen), overrides, trial.kept[0]))
    found = {}
    for group, slot in places:
        if (whole[slot.name] & ~later[slot.name]).any():
            found[group.name] = f"the first batch alone sets the buffer {slot.name}"
    return found


def _written(trial: Trial, first: AbstractContextManager[None] | None) -> dict[str, Tensor]:
    """Tell which entries of buffers a whole forward changes, in a training whose first forward was another one."""
    twin, path = trial.twin, trial.paths[0]
    with state_kept(twin):
        if first:
            with first:
                forward(twin, trial.inputs, path, NoDropout())
        before = {name: each.clone() for name, each in twin.named_buffers()}
        forward(twin, trial.inputs, path, NoDropout())
        return {name: each != before[name] for name, each in twin.named_buffers()}


def _without(trial: Trial, refused: Mapping[str, str]) -> Trial:
    trial.whole()
    groups = [group for group in trial.groups if group.name not in refused]
    return Trial(trial.twin, trial.inputs, groups, trial.paths)


def _as_chosen(groups: Sequence[UnitGroup], chosen: Overrides) -> list[UnitGroup]:
    return [group if group.name in chosen else replace(group, zeroed=True) for group in groups]


def _fault(trial: Trial, chosen: Overrides) -> str:
    """Try all groups, those that are chosen left out, and the others zeroed."""
    return trial.fault(_as_chosen(trial.groups, chosen), chain(*chosen.values()))


def _search(trial: Trial, reasons: dict[str, str]) -> tuple[Overrides, dict[str, str]]:
    """Look for the attributes that have to change, group by group, until what was learned is enough for all.

    Returns them, and the reasons why groups cannot even be zeroed.
    """
    search = OverrideSearch(trial.twin)
    chosen: dict[str, Sequence[AttributeOverride]] = {}
    refused: dict[str, str] = {}
    tried: Overrides | None = None
    for group in trial.groups:
        left = [each for each in trial.groups if each.name not in reasons]
        guess = {each.name: chosen.get(each.name, search.guess(each)) for each in left}
        if not refused and guess != tried and not _fault(trial, guess):
            return guess, {}
        tried = guess
        overrides, reason = search.fewest(group, partial(trial.fault, [group]))
        if not reason:
            chosen[group.name] = overrides
        elif trial.fault([replace(group, zeroed=True)]):
            refused[group.name] = reason
        else:
            reasons[group.name] = reason
    return chosen, refused


def _together(trial: Trial, chosen: Overrides, reasons: dict[str, str]) -> Overrides:
    """Return what can be left out along with what comes before."""
    if not _fault(trial, chosen):
        return chosen
    together: Overrides = {}
    for name, overrides in chosen.items():
        more = {**together, name: overrides}
        if fault := _fault(trial, more):
            reasons[name] = f"not along with the others: {fault}"
        else:
            together = more
    return together
