"""Groups of units that stand for dropouts: a dropout between the layers of a group drops the units of that group.

Where a model has such groups, masks over the inputs or outputs of single layers become groups too, so that one mask
covers all of them: the layers that they share have one owner.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from mrreg.convert.planner import DropoutSite, MaskSpec, Placement
from mrreg.masks.slots import Slot, UnitGroup
from mrreg.masks.targets import find_targets
from mrreg.module_utils import join
from mrreg.thinning.blocks import BLOCKS
from mrreg.thinning.build import check_model, search
from mrreg.thinning.channel_sets import Place
from mrreg.thinning.counts import kept
from mrreg.thinning.report import ThinReport

WHOLE_FEATURES = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)  # they drop a channel with all its places


@dataclass
class Choice:
    """Groups that stand for one dropout, and how the report calls them."""

    groups: list[UnitGroup]
    masks: dict[str, str]
    reason: str


class UnitPlan:
    """Chooses groups for the dropouts of a model.

    Args:
        modules: The modules of the model, by path.
        sites: The dropouts.
        drop_paths: p of each module that drops its branch, by path.
    """

    def __init__(
        self, modules: Mapping[str, nn.Module], sites: Iterable[DropoutSite], drop_paths: Mapping[str, float]
    ) -> None:
        self.modules, self.drop_paths = modules, drop_paths
        self.sites = [site for site in sites if site.placements and site.p < 1]
        self.chosen: dict[DropoutSite, Choice] = {}
        self.off: dict[str, str] = {}  # what ends the branches that can be off, and how many are
        self.branches: dict[str, str] = {}  # what drops other branches, and why they run always
        self._refused: set[str] = set()

    def search(self, model: nn.Module, k: int, example_inputs: Any) -> ThinReport | None:
        """Choose groups for dropouts, and others where the trial refuses one; return the report, if any lose units."""
        while self.sites or self.drop_paths:
            report = search(model, k, example_inputs, self._choose, self.drop_paths, self._columns())
            groups = [group.name for choice in self.chosen.values() for group in choice.groups]
            refused = {name for name in groups if not report[name].admitted}
            if not refused:
                self.off = {block.name: _off(group) for group in report.groups for block in group.blocks}
                self.branches = dict(_branches(report))
                return report if report.groups else None
            self._refused |= refused
        return None

    def _choose(self, found: list[UnitGroup]) -> list[UnitGroup]:
        """Return the groups with the numbers of units that stay; if none lies around a dropout, all of them whole."""
        self.chosen = {}
        options = {site: self._options(site, found) for site in self.sites}
        if not any(group.blocks for group in found) and not any(between for between, _ in options.values()):
            return found
        taken: set[Place] = set()
        for site, (between, single) in sorted(options.items(), key=lambda item: sum(map(len, item[1]))):
            for choice in (*between, *single):
                places = {place for group in choice.groups for place in _places(group)}
                if not places & taken:
                    taken |= places
                    self.chosen[site] = choice
                    break
        ours = {group.name: group for choice in self.chosen.values() for group in choice.groups}
        return [*(ours.pop(group.name, group) for group in found), *ours.values()]

    def _columns(self) -> set[Place]:
        """Return the parameters, and their dimensions, that take what the dropouts give."""
        masks = [item for site in self.sites for placement in site.placements for item in placement.items()]
        groups = [_single(path, mask, self.modules[path]) for path, mask in masks if mask.structure == "input"]
        return {place for group in groups if group is not None for place in _places(group)}

    def _options(self, site: DropoutSite, found: Iterable[UnitGroup]) -> tuple[list[Choice], list[Choice]]:
        """Return the groups that lie around a dropout, and those over what single layers take or give."""
        between, single = [], []
        for placement in site.placements:
            alone = [_single(path, mask, self.modules[path]) for path, mask in placement.items()]
            if None in alone:
                continue
            groups = [replace(group, kept=kept(group, site.p)) for group in alone if group is not None]
            masks = {path: str(mask.structure) for path, mask in placement.items()}
            single.append(Choice(groups, masks, _reason(site, placement)))
            read = {place for group in groups for place in _places(group)}
            inner = [group for group in found if self._lies_around(site, group, read)]
            if set(masks.values()) == {"input"} and read == {place for group in inner for place in _read(group)}:
                inner = [replace(group, kept=kept(group, site.p)) for group in inner]
                kinds = {group.name: str(group.kind) for group in inner}
                between.append(Choice(inner, kinds, "it lies between layers that share these units"))
        return self._not_refused(between), self._not_refused(single)

    def _not_refused(self, choices: Iterable[Choice]) -> list[Choice]:
        return [choice for choice in choices if self._refused.isdisjoint(group.name for group in choice.groups)]

    def _lies_around(self, site: DropoutSite, group: UnitGroup, read: Collection[Place]) -> bool:
        """Tell if dropping the units of a group is dropping what a dropout gives to these columns."""
        if group.blocks or group.keeps_shape or not _read(group) <= set(read):
            return False
        whole = isinstance(self.modules.get(site.path), WHOLE_FEATURES)
        return whole or all(slot.indices.shape[1] == 1 for slot in group.slots if slot.role == "consumer")


def find_units(model: nn.Module, k: int, example_inputs: Any, plan: UnitPlan) -> tuple[ThinReport | None, str]:
    """Return the groups of a plan, or the obstacle to looking for them: then masks over single layers do without."""
    inputs = example_inputs if isinstance(example_inputs, tuple | Mapping) else (example_inputs,)
    try:
        check_model(model)
        return plan.search(model, k, inputs), ""
    except Exception as error:  # of a forward that runs as it is, but not in float64 or not as a copy
        plan.chosen = {}
        return None, f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"


def owners(report: ThinReport) -> list[str]:
    """Return the paths of modules with parameters that hold units."""
    names = [slot.name for group in report.groups for slot in group.slots]
    names += [name for group in report.groups for block in group.blocks for name in block.parameters]
    return list(dict.fromkeys(name.rpartition(".")[0] for name in names))


def _off(group: UnitGroup) -> str:
    number = f"{group.units - group.kept} of {group.units} branches"
    return f"{number} are off in a cycle, all with the same probability; those are not computed"


def _branches(report: ThinReport) -> Iterator[tuple[str, str]]:
    """Yield the modules that drop branches which run always all the same, and why."""
    for name, entry in report.items():
        if entry.kind == BLOCKS and not entry.admitted:
            yield from ((path, entry.reason) for path in [block.name for block in entry.blocks] or [name])


def _single(path: str, mask: MaskSpec, layer: nn.Module) -> UnitGroup | None:
    """Return the group of what one layer takes or gives; None where its parameters have units in several places."""
    if isinstance(layer, nn.RNNBase):  # it reads its parameters from a list of its own
        return None
    slots = []
    for target in find_targets(layer, mask.parameters or None, mask.structure):
        layout = target.layout
        if layout is None or layout.repeats * layout.groups != 1 or target.normalized:
            return None
        slots.append(Slot(join(path, target.name), layout.dim, torch.arange(layout.units)[:, None], "consumer"))
    units = slots[0].indices.shape[0]
    if any(slot.indices.shape[0] != units for slot in slots):
        return None
    kind = "inputs" if mask.structure == "input" else "outputs"
    return UnitGroup(f"{kind} of {path}", kind, units, units, tuple(slots))  # type: ignore[arg-type]


def _places(group: UnitGroup) -> set[Place]:
    return {(slot.name, slot.dim) for slot in group.slots}


def _read(group: UnitGroup) -> set[Place]:
    return {(slot.name, slot.dim) for slot in group.slots if slot.role == "consumer"}


def _reason(site: DropoutSite, placement: Placement) -> str:
    """Return why what single layers take or give is dropped."""
    if all(mask.structure == "input" for mask in placement.values()):
        return "its output goes there"
    return site.reason or "the layer that takes its output has another mask"
