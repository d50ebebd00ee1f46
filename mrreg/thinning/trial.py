"""Admission by trial: a masked double copy has to compute what it computes with zeros for absent units in its columns.

What cannot be left out, such as heads whose number is written into a shape, is zeroed: its units are computed, and the
columns that read those that are absent are zero.
"""

import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import PurePath
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mrreg.errors import NOT_OF_THE_USER
from mrreg.masks.groups import AttributeOverride, UnitGroup
from mrreg.masks.install import put_mask, take_mask
from mrreg.masks.mask import NAME, Mask
from mrreg.thinning.overrides import OverrideSearch
from mrreg.thinning.paths import Path, Ran, find_paths, run
from mrreg.thinning.twin import WHERE, Inputs, named_tensors, randomize

TOLERANCE = 1e-9
Overrides = Mapping[str, Sequence[AttributeOverride]]  # by the name of the group that needs them
Written = list[tuple[Tensor, int, Tensor, Tensor]]  # tensor, dimension, positions, values before


def draws(group: UnitGroup, seed: int) -> list[Tensor]:
    """Return subsets of kept units: a random one and its opposite, the first units and the last."""
    order = torch.randperm(group.units, generator=torch.Generator("cpu").manual_seed(seed), device="cpu")
    every = torch.arange(group.units, device="cpu")
    halves = order[: group.kept], order[-group.kept :], every[: group.kept], every[-group.kept :]
    return [kept.sort().values for kept in halves]


@contextmanager
def thinned(
    twin: nn.Module, groups: Sequence[UnitGroup], overrides: Iterable[AttributeOverride], kept: Mapping[str, Tensor]
) -> Iterator[None]:
    """Make a copy thin inside a `with` block, with these units kept in each group."""
    mask = Mask(twin, groups, (), overrides, "units", 0.0, 2, 1.0, False, None, WHERE)
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

    So the output is always that of zeros in all of them. Each path is paired with two opposite subsets.

    Args:
        twin: A double copy with random weights, which serve as noise in absent units too.
        inputs: Arguments of its forward.
        groups: All that may be thin, with the numbers of units that are kept.
        paths: Those on which the output is compared.
    """

    def __init__(self, twin: nn.Module, inputs: Inputs, groups: Sequence[UnitGroup], paths: Sequence[Path]) -> None:
        self.twin, self.inputs, self.groups, self.paths = twin, inputs, groups, paths
        self.tensors = named_tensors(twin)
        drawn = [draws(group, seed) for seed, group in enumerate(groups)]
        self.kept = [{group.name: each[i] for group, each in zip(groups, drawn, strict=True)} for i in range(4)]
        self.cases = [(i, list(paths[i // 2 :: 2])) for i in range(4)] if groups else [(0, list(paths))]
        self._zeroed: dict[str, Written] = {}
        self._draw = 0
        self.expect()

    def expect(self) -> None:
        """Let what the copy does now, with zeros in columns, be what is expected of it."""
        self.expected: dict[tuple[int, Path], Ran] = {}
        for draw, paths in self.cases:
            self._zero(draw, self.groups)
            self.expected |= {(draw, path): run(self.twin, self.inputs, path) for path in paths}

    def fault(self, groups: Sequence[UnitGroup] = (), overrides: Iterable[AttributeOverride] = ()) -> str:
        """Describe how the output differs if a mask makes some groups thin; nothing if it does not."""
        names, overrides = {group.name for group in groups}, list(overrides)
        slots = {slot.name for group in groups for slot in group.slots if not group.keeps_shape}
        for draw, paths in self.cases:
            self._zero(draw, [group for group in self.groups if group.name not in names])
            with thinned(self.twin, groups, overrides, self.kept[draw]) if groups else nullcontext():
                for path in paths:
                    if found := self._difference(draw, path, slots):
                        return found
        return ""

    def noise(self, groups: Sequence[UnitGroup]) -> str:
        """Put noise where absent units of groups are made, and describe the change of the output."""
        for draw, paths in self.cases:
            self._zero(draw, self.groups)
            written = [each for group in groups for each in self._write(group, ("producer", "member"), noise=True)]
            found = next(filter(None, (self._difference(draw, path, set()) for path in paths)), "")
            _restore(written)
            if found:
                return f"units that nothing should read have an effect: {found}"
        return ""

    def whole(self) -> None:
        """Give the copy its columns back."""
        self._zero(0, [])

    def _zero(self, draw: int, groups: Sequence[UnitGroup]) -> None:
        """Have zeros in the columns that read absent units of these groups, and of no others."""
        if draw != self._draw or self._zeroed.keys() - {group.name for group in groups}:
            while self._zeroed:  # the last first, since rows and columns of one weight overlap
                _restore(self._zeroed.popitem()[1])
        self._draw = draw
        for group in groups:
            if group.name not in self._zeroed:
                self._zeroed[group.name] = self._write(group, ("consumer",), noise=False)

    @torch.no_grad()
    def _write(self, group: UnitGroup, roles: tuple[str, ...], noise: bool) -> Written:
        written = []
        kept = self.kept[self._draw][group.name]
        gone = torch.ones(group.units, dtype=torch.bool, device="cpu").index_fill_(0, kept, False)
        for slot in group.slots:
            if slot.role in roles:
                tensor = self.tensors[slot.name]
                absent = slot.indices[gone].flatten().to(tensor.device)
                before = tensor.index_select(slot.dim, absent)
                written.append((tensor, slot.dim, absent, before))
                values = torch.randn_like(before).abs() if noise else torch.zeros_like(before)
                tensor.index_copy_(slot.dim, absent, values)
        return written

    def _difference(self, draw: int, path: Path, slots: set[str]) -> str:
        expected = self.expected[draw, path]
        if replaced := expected.replaced & slots:
            return f"the forward replaces the buffer {min(replaced)}{path.name}"
        try:
            fault = _compare(run(self.twin, self.inputs, path), expected)
        except Exception as error:
            if "checkpointing inside" in str(error):  # a mask refuses that, whatever the group
                raise
            fault = failure(error)
        return fault and f"{fault}{path.name}"


@torch.no_grad()
def _restore(written: Written) -> None:
    for tensor, dim, absent, before in reversed(written):
        tensor.index_copy_(dim, absent, before)


def _compare(found: Ran, expected: Ran) -> str:
    if [one.shape for one in found.outputs] != [two.shape for two in expected.outputs]:
        return "the outputs have other shapes"
    for one, two in zip(found.outputs, expected.outputs, strict=True):
        scale = max(1.0, float(two.abs().max())) if two.numel() else 1.0
        worst = float((one - two).abs().max()) if two.numel() else 0.0
        if not worst <= TOLERANCE * scale:
            return f"the output differs by {worst / scale:.1g}"
    changed = [name for name, shape in found.buffers.items() if shape != expected.buffers.get(name)]
    return f"the buffer {changed[0]} gets another shape" if changed else ""


def failure(error: Exception) -> str:
    """Name the line of the user's code that raised an error, and the error."""
    told = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(NOT_OF_THE_USER)]
    if not frames:
        return told
    return f"{PurePath(frames[-1].filename).name}:{frames[-1].lineno} fails, `{frames[-1].line}` ({told})"


class Admission(NamedTuple):
    """Outcome of trying groups.

    Args:
        groups: Those that can be left out together, or zeroed.
        overrides: The attributes that change with each of them, by the group's name.
        reasons: Obstacles of the others, by name; of groups that are zeroed, why they cannot be left out.
        paths: On which they were tried.
    """

    groups: list[UnitGroup]
    overrides: Overrides
    reasons: dict[str, str]
    paths: list[Path]


def admit(twin: nn.Module, inputs: Inputs, groups: Sequence[UnitGroup]) -> Admission:
    """Try groups with the numbers of units that they would keep: all at once, and one by one where that fails."""
    randomize(twin)
    paths = find_paths(twin, inputs)
    trial = Trial(twin, inputs, groups, paths)
    reasons: dict[str, str] = {}
    chosen: Overrides = {group.name: [] for group in groups}
    if trial.fault(groups):
        if trial.noise(groups):
            reasons = {group.name: reason for group in groups if (reason := trial.noise([group]))}
            trial = _without(trial, reasons)
        chosen, refused = _search(trial, reasons)
        if refused:
            trial = _without(trial, refused)
            reasons |= refused
        chosen = _together(trial, chosen, reasons)
    trial.whole()
    return Admission(_as_chosen(trial.groups, chosen), chosen, reasons, paths)


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
