"""Which groups can be left out of a model, alone and all at once, and the attributes that change with them.

A double copy with a mask is compared with what it computes with zeros for absent units in the columns that read them.
What cannot be left out, such as heads whose number is written into a shape, is zeroed: computed, and read as zero.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain, combinations, islice
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mrreg.masks.groups import AttributeOverride, UnitGroup
from mrreg.masks.install import put_mask, take_mask
from mrreg.masks.mask import NAME, Mask
from mrreg.thinning.paths import Path, Ran, difference, failure, forward, run
from mrreg.thinning.report import ThinEntry
from mrreg.thinning.twin import WHERE, Inputs, frozen, named_tensors, randomize, state_kept

Key = tuple[str, str]  # path of a module with other numbers of layers, attribute
NUMBER = re.compile(r"\d+")
MOST = 3  # keys of attributes that one group may need to change
TRIES = 40  # choices of keys that are tried for one group, those of fewer keys first
SUBSETS = 3  # of units that are tried


class Attempt(NamedTuple):
    """A group that is left out along with a change of attributes, or zeroed."""

    group: ThinEntry
    overrides: Sequence[AttributeOverride] = ()


def draws(group: UnitGroup, seed: int) -> list[Tensor]:
    """Return subsets of kept units: the first units, the last, and random ones."""
    order = torch.randperm(group.units, generator=torch.Generator("cpu").manual_seed(seed), device="cpu")
    every = torch.arange(group.units, device="cpu")
    return [every[: group.kept], every[-group.kept :], order[: group.kept].sort().values]


@contextmanager
def thinned(
    twin: nn.Module, groups: Sequence[UnitGroup], overrides: Iterable[AttributeOverride], kept: Mapping[str, Tensor]
) -> Iterator[None]:
    """Make a copy thin inside a `with` block, with these units kept in each group."""
    mask = Mask(WHERE, groups, (), overrides, k=2, boost=1.0, rescale=False)
    mask.masking = mask.attached = True
    for tensor in mask.tensors.values():
        tensor.draw(kept, tensor.of(twin))
    put_mask(twin, mask, NAME)
    try:
        yield
    finally:
        take_mask(twin, NAME)


class Trial:
    """Runs a double copy with some of its groups thin, and the others with literal zeros in the columns that read them.

    The plain path is tried with all subsets of units, others with one. `factor` multiplies what stays in those columns.
    """

    def __init__(
        self, twin: nn.Module, inputs: Inputs, groups: Sequence[UnitGroup], paths: Sequence[Path], factor: float = 1.0
    ) -> None:
        self.twin, self.inputs, self.groups, self.paths, self.factor = twin, inputs, groups, paths, factor
        self.tensors = named_tensors(twin)
        drawn = [draws(group, seed) for seed, group in enumerate(groups)]
        self.kept = [{group.name: each[i] for group, each in zip(groups, drawn, strict=True)} for i in range(SUBSETS)]
        plain, *others = paths
        self.cases = [(i, [plain, *others[i::SUBSETS]]) for i in range(SUBSETS)] if groups else [(0, list(paths))]
        self.weights = {slot.name: self.tensors[slot.name].detach().clone() for each in groups for slot in each.slots}
        self.expect()

    def expect(self) -> None:
        """Let what the copy does now, with zeros in columns, be what is expected of it."""
        self.expected: dict[tuple[int, Path], Ran] = {}
        for draw, paths in self.cases:
            self._zero(draw, self.groups)
            self.expected |= {(draw, path): run(self.twin, self.inputs, path) for path in paths}

    def fault(self, *attempts: Attempt) -> str:
        """Describe how the output differs if a mask makes some groups thin; nothing if it does not."""
        groups, overrides = [each.group for each in attempts], [each for one in attempts for each in one.overrides]
        slots = {slot.name for group in groups for slot in group.slots if not group.keeps_shape}
        for draw, paths in self.cases:
            self._zero(draw, [each for each in self.groups if each.name not in {group.name for group in groups}])
            with thinned(self.twin, groups, overrides, self.kept[draw]) if groups else nullcontext():
                if found := self.difference(draw, paths, slots):
                    return found
        return ""

    def noise(self, *attempts: Attempt) -> str:
        """Put noise where absent units of groups are made, and describe the change of the output."""
        for draw, paths in self.cases:
            self._zero(draw, self.groups)
            for each in attempts:
                self._write(each.group, draw, noise=True)
            if found := self.difference(draw, paths):
                return f"units that nothing should read have an effect: {found}"
        return ""

    @torch.no_grad()
    def whole(self) -> None:
        """Give the copy its weights back."""
        for name, value in self.weights.items():
            self.tensors[name].copy_(value)

    def _zero(self, draw: int, groups: Sequence[UnitGroup]) -> None:
        """Have zeros in the columns that read absent units of these groups, and of no others."""
        self.whole()
        for group in groups:
            self._write(group, draw, noise=False)

    @torch.no_grad()
    def _write(self, group: UnitGroup, draw: int, noise: bool) -> None:
        """Write noise where absent units of a group are made, or else zeros where they are read."""
        gone = torch.ones(group.units, dtype=torch.bool, device="cpu")
        gone[self.kept[draw][group.name]] = False
        for slot in group.slots:
            if (slot.role != "consumer") is noise:
                tensor = self.tensors[slot.name]
                absent = slot.indices[gone].flatten().to(tensor.device)
                values = tensor.index_select(slot.dim, absent)
                other = torch.randn_like(values.real).abs().to(values.dtype) if noise else 0 * values
                tensor.index_copy_(slot.dim, absent, other)
                if self.factor != 1:
                    kept = slot.indices[~gone].flatten().to(tensor.device)
                    tensor.index_copy_(slot.dim, kept, tensor.index_select(slot.dim, kept) * self.factor)

    def difference(self, draw: int, paths: Iterable[Path], slots: Collection[str] = ()) -> str:
        """Describe how the output differs from what is expected."""
        for path in paths:
            expected = self.expected[draw, path]
            if replaced := expected.replaced.intersection(slots):
                return f"the forward replaces the buffer {min(replaced)}{path.name}"
            try:
                fault = difference(run(self.twin, self.inputs, path), expected)
            except Exception as error:
                fault = failure(error)
            if fault:
                return f"{fault}{path.name}"
        return ""


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
    in_place = [_zeroed(group, begun[group.name]) for group in groups if group.name in begun]
    left = [group for group in groups if group.name not in {**begun, **reasons}]
    left.sort(key=lambda each: not search.candidates(each))  # what is learned of these serves others
    while left:
        guesses = [search.guess(group) for group in left if _alike(group) not in search.failed]
        if guesses and not trial.fault(*done, *guesses):
            done += guesses
            left = [group for group in left if _alike(group) in search.failed]
            continue
        attempt = search.fewest(left.pop(0), partial(trial.fault, *done))
        (in_place if attempt.group.zeroed else done).append(attempt)
    if in_place and (trial.noise(*in_place) or trial.fault(*done, *in_place)):
        for each in tuple(in_place):
            if obstacle := trial.noise(each) or (trial.fault(*done, each) and each.group.reason):
                reasons[each.group.name] = obstacle
                in_place.remove(each)
    trial.whole()
    found = {each.group.name: replace(each.group, admitted=True) for each in (*done, *in_place)}
    changed = {(each.module, each.attribute): each for one in done for each in one.overrides}
    return [found.get(g.name) or g.refused(reasons[g.name]) for g in groups], list(changed.values())


def _zeroed(group: ThinEntry, reason: str) -> Attempt:
    return Attempt(replace(group, zeroed=True, reason=reason))


def _written(trial: Trial) -> tuple[dict[str, str], dict[str, str]]:
    """Return why groups cannot be left out (a first forward alone sets buffers), or not be absent at all."""
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
        self.failed: dict[object, str] = {}  # by what groups have in common that lie alike in all layers

    def guess(self, group: ThinEntry) -> Attempt:
        """Return what served the last group of this kind."""
        candidates = self.candidates(group)
        choice = next((each for each in self._served if set(each) <= set(candidates)), ())
        return Attempt(group, [each for key in choice for each in candidates[key]])

    def fewest(self, group: ThinEntry, fault: Callable[[Attempt], str]) -> Attempt:
        """Return the attempt with the fewest overrides that has no fault, or to zero with that without any."""
        reason = fault(Attempt(group))
        if not reason:
            return Attempt(group)
        candidates = {} if self.failed.get(_alike(group)) == reason else self.candidates(group)
        served = [choice for choice in self._served if set(choice) <= set(candidates)]
        fewest = (choice for size in range(1, MOST + 1) for choice in combinations(candidates, size))
        for choice in islice(chain(served, fewest), TRIES):
            attempt = Attempt(group, [each for key in choice for each in candidates[key]])
            if not fault(attempt):
                self._served.insert(0, choice)
                return attempt
        self.failed[_alike(group)] = reason
        return _zeroed(group, reason)

    def candidates(self, group: ThinEntry) -> dict[Key, list[AttributeOverride]]:
        """Attributes of owners and ancestors that count units, in all layers or in one."""
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
    """Return a multiple of the units that divides a width, or a list of such, for those that are kept; else None."""
    if type(value) in (list, tuple):
        sizes = [_smaller(each, group, widths) for each in value if type(each) is int]
        fits = len(sizes) == len(value) > 0 and None not in sizes
        return type(value)(sizes) if fits else None
    counts = type(value) is int and value > 0 and value % group.units == 0 and any(w % value == 0 for w in widths)
    return value * group.kept // group.units if counts else None
