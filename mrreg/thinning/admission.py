"""Which groups can be left out of a model, alone and all at once, and the attributes that change with them.

What cannot be left out, such as heads whose number is written into a shape, is zeroed: its units are computed, and the
columns that read those that are absent are zero. Counts of units that modules keep as attributes, numbers or lists of
them, have to change with the units.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, combinations, islice
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mrreg.masks.groups import AttributeOverride
from mrreg.thinning.paths import Path, forward
from mrreg.thinning.report import ThinEntry
from mrreg.thinning.trial import Trial
from mrreg.thinning.twin import Inputs, frozen, randomize, state_kept

Key = tuple[str, str]  # path of a module with other numbers of layers, attribute
NUMBER = re.compile(r"\d+")
MOST = 3  # keys of attributes that one group may need to change
TRIES = 40  # choices of keys that are tried for one group, those of fewer keys first


class Attempt(NamedTuple):
    """A group that is left out along with a change of attributes, or zeroed for a reason."""

    group: ThinEntry
    overrides: Sequence[AttributeOverride] = ()


def zeroed(group: ThinEntry, reason: str) -> Attempt:
    """Return the attempt to zero a group that cannot be left out."""
    return Attempt(replace(group, zeroed=True, reason=reason))


def admit(
    twin: nn.Module, inputs: Inputs, groups: Sequence[ThinEntry], paths: Sequence[Path]
) -> tuple[list[ThinEntry], list[AttributeOverride]]:
    """Try groups with the numbers of units that they would keep: all at once, else one by one with those before it.

    What served a group is guessed of the others; those like one that failed are tried apart.
    """
    randomize(twin)
    with _reads_noted(twin) as read:
        trial = Trial(twin, inputs, groups, paths)
    search, done = OverrideSearch(twin, read), list[Attempt]()
    begun, reasons = _written(trial)
    in_place = [zeroed(group, begun[group.name]) for group in groups if group.name in begun]
    left = [group for group in groups if group.name not in {**begun, **reasons}]
    left.sort(key=lambda each: not search.candidates(each))  # what is learned of these serves others
    while left:
        guesses = [search.guess(group) for group in left if not search.doubts(group)]
        if guesses and not _fault(trial, [*done, *guesses]):
            done += guesses
            left = list(filter(search.doubts, left))
            continue
        group, *left = left
        attempt = search.fewest(group, lambda each, done=tuple(done): _fault(trial, [*done, each]))  # type: ignore[misc]
        (in_place if attempt.group.zeroed else done).append(attempt)
    if in_place and (trial.noise([each.group for each in in_place]) or _fault(trial, [*done, *in_place])):
        for each in tuple(in_place):
            if obstacle := trial.noise([each.group]) or (_fault(trial, [*done, each]) and each.group.reason):
                reasons[each.group.name] = obstacle
                in_place.remove(each)
    trial.whole()
    found = {each.group.name: replace(each.group, admitted=True) for each in (*done, *in_place)}
    changed = {(each.module, each.attribute): each for each in chain(*(each.overrides for each in done))}
    return [found.get(g.name) or g.refused(reasons[g.name]) for g in groups], list(changed.values())


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
            forward(twin, trial.inputs, path._replace(factor=factor))
    changes = zip(buffers, *values, strict=True)
    once = {name for name, one, *more in changes if ((one != more[0]) & (more[0] == more[1])).any()}
    always = {name for name, p in twin.named_parameters() if not torch.equal(p, trial.weights.get(name, p))}
    places = [(group.name, slot.name) for group in trial.groups for slot in group.slots]
    begun = {group: f"the first batch alone sets the buffer {name}" for group, name in places if name in once}
    return begun, {group: f"the forward writes to the parameter {name}" for group, name in places if name in always}


class OverrideSearch:
    """Finds the fewest attributes that have to change for a group, and tries first what served another group."""

    def __init__(self, model: nn.Module, read: set[Key]) -> None:
        self.model, self.read = model, read  # attributes that forwards read, by the path of the module
        self._served: list[tuple[Key, ...]] = []
        self._failed: dict[object, str] = {}  # by what groups have in common that lie alike in all layers

    def guess(self, group: ThinEntry) -> Attempt:
        """Return what served the last group of this kind."""
        candidates = self.candidates(group)
        choice = next((each for each in self._served if set(each) <= set(candidates)), ())
        return Attempt(group, [each for key in choice for each in candidates[key]])

    def doubts(self, group: ThinEntry) -> bool:
        """Tell if a group like this one has failed."""
        return _alike(group) in self._failed

    def fewest(self, group: ThinEntry, fault: Callable[[Attempt], str]) -> Attempt:
        """Return the attempt with the fewest overrides that has no fault, or to zero with that without any."""
        reason = fault(Attempt(group))
        if not reason:
            return Attempt(group)
        candidates = {} if self._failed.get(_alike(group)) == reason else self.candidates(group)
        served = [choice for choice in self._served if set(choice) <= set(candidates)]
        fewest = (choice for size in range(1, MOST + 1) for choice in combinations(candidates, size))
        for choice in islice(chain(served, fewest), TRIES):
            attempt = Attempt(group, [each for key in choice for each in candidates[key]])
            if not fault(attempt):
                self._served.insert(0, choice)
                return attempt
        self._failed[_alike(group)] = reason
        return zeroed(group, reason)

    def candidates(self, group: ThinEntry) -> dict[Key, list[AttributeOverride]]:
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
def _reads_noted(model: nn.Module) -> Iterator[set[Key]]:
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


def _alike(group: ThinEntry) -> object:
    return tuple((NUMBER.sub("#", slot.name), slot.dim) for slot in group.slots)


def _relative(path: str, first: Sequence[int]) -> str:
    numbers = iter(first)
    return NUMBER.sub(lambda found: f"{int(found[0]) - next(numbers, 0):+}", path)


def _smaller(value: Any, group: ThinEntry, widths: set[int]) -> Any:
    """Return a count, or a list of some, for the units that are kept; None for what counts no units."""
    if type(value) in (list, tuple):
        sizes = [_smaller(each, group, widths) for each in value if type(each) is int]
        fits = len(sizes) == len(value) > 0 and None not in sizes
        return type(value)(sizes) if fits else None
    counts = type(value) is int and value > 0 and value % group.units == 0 and any(w % value == 0 for w in widths)
    return value * group.kept // group.units if counts else None
