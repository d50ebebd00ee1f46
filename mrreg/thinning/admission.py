"""Which groups can be left out of a model, alone and all at once, and the attributes that change with them.

What cannot be left out, such as heads whose number is written into a shape, is zeroed: its units are computed, and the
columns that read those that are absent are zero.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mrreg.masks.groups import AttributeOverride, UnitGroup
from mrreg.thinning.overrides import Attempt, OverrideSearch, reads_noted, zeroed
from mrreg.thinning.paths import NoDropout, Path, forward, run
from mrreg.thinning.trial import Trial
from mrreg.thinning.twin import Inputs, frozen, randomize, state_kept


class Admission(NamedTuple):
    """Outcome of trying groups on some paths."""

    groups: list[UnitGroup]  # that can be left out together, or zeroed
    overrides: Mapping[str, Sequence[AttributeOverride]]  # by the name of the group that needs them
    reasons: dict[str, str]  # obstacles of the others; of groups that are zeroed, why they cannot be left out
    paths: Sequence[Path]


def admit(twin: nn.Module, inputs: Inputs, groups: Sequence[UnitGroup], paths: Sequence[Path]) -> Admission:
    """Try groups with the numbers of units that they would keep: all at once, else one by one with those before it.

    What served a group is guessed of the others; those like one that failed are tried apart.
    """
    randomize(twin)
    trial, search, done = Trial(twin, inputs, groups, paths), OverrideSearch(twin), list[Attempt]()
    begun, reasons = _written(trial)
    in_place = [zeroed(group, begun[group.name]) for group in groups if group.name in begun]
    left = [group for group in groups if group.name not in {**begun, **reasons}]
    while left:
        guesses = [search.guess(group) for group in left if not search.doubts(group)]
        if guesses and not _fault(trial, [*done, *guesses]):
            done += guesses
            left = list(filter(search.doubts, left))
            continue
        if not search.read:
            with reads_noted(twin) as search.read:
                for path in paths:
                    run(twin, inputs, path)
            left.sort(key=lambda each: not search.candidates(each))  # what is learned of these serves others
        group, *left = left
        attempt = search.fewest(group, lambda each, done=tuple(done): _fault(trial, [*done, each]))  # type: ignore[misc]
        (in_place if attempt.reason else done).append(attempt)
    if in_place and (trial.noise([each.group for each in in_place]) or _fault(trial, [*done, *in_place])):
        for each in tuple(in_place):
            if obstacle := trial.noise([each.group]) or (_fault(trial, [*done, each]) and each.reason):
                reasons[each.group.name] = obstacle
                in_place.remove(each)
    trial.whole()
    reasons |= {each.group.name: each.reason for each in in_place}
    left_out = {each.group.name: each.overrides for each in done}
    found = {each.group.name: each.group for each in (*done, *in_place)}
    return Admission([found[each.name] for each in groups if each.name in found], left_out, reasons, paths)


def _fault(trial: Trial, attempts: Sequence[Attempt]) -> str:
    return trial.fault([each.group for each in attempts], chain(*(each.overrides for each in attempts)))


def _written(trial: Trial) -> tuple[dict[str, str], dict[str, str]]:
    """Return why groups cannot be left out, or not be absent at all, since the forward writes to tensors of theirs.

    What a first forward alone sets in buffers has to be set by a whole one. Of parameters a mask shows copies.
    """
    twin, path = trial.twin, trial.paths[0]
    buffers = [name for name, _ in twin.named_buffers() if name in trial.weights]
    values: list[list[Tensor]] = []
    trial.whole()
    with frozen(twin), state_kept(twin):
        for factor in (1.0, -10.0, 0.0) if buffers else (1.0,):
            values.append([twin.get_buffer(name).clone() for name in buffers])
            forward(twin, trial.inputs, path._replace(factor=factor), NoDropout())
    changes = zip(buffers, *values, strict=True)
    once = {name for name, one, *more in changes if ((one != more[0]) & (more[0] == more[1])).any()}
    always = {name for name, p in twin.named_parameters() if not torch.equal(p, trial.weights.get(name, p))}
    places = [(group.name, slot.name) for group in trial.groups for slot in group.slots]
    begun = {group: f"the first batch alone sets the buffer {name}" for group, name in places if name in once}
    return begun, {group: f"the forward writes to the parameter {name}" for group, name in places if name in always}
