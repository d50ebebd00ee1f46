"""The dropouts of a model, and the units that can be absent in the place of what each of them drops.

A dropout is a place in the recorded forward of a double copy. Gradients show which products read what it gives, and
which make what it takes. Whatever is found so is tried: the copy computes the same with these entries at zero as with
the units dropped, or the candidate is none.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from mrreg.masks.groups import Slot, UnitGroup
from mrreg.masks.install import MultirateMask
from mrreg.module_utils import has_stock_forward, within
from mrreg.thinning.counts import kept
from mrreg.thinning.grouping import Finder
from mrreg.thinning.influence import Influence
from mrreg.thinning.paths import Path, find_paths, run
from mrreg.thinning.recorder import Channels, Recording, record
from mrreg.thinning.trial import TOLERANCE
from mrreg.thinning.twin import Inputs, double_copy, named_tensors, probing, randomize, read_inputs

DROPOUTS = nn.modules.dropout._DropoutNd
WHOLE_FEATURES = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)  # they drop a channel with all its places
NO_ZEROS = (nn.AlphaDropout, nn.FeatureAlphaDropout)
ATTENTION = "it acts on attention probabilities, which have no weight"


@dataclass
class Candidate:
    """Groups that can stand for a dropout.

    Args:
        groups: The groups, with the numbers of units that stay.
        masks: Kind of the units, by the layer that the report names.
        reason: Why they can.
    """

    groups: list[UnitGroup]
    masks: dict[str, str]
    reason: str

    @property
    def places(self) -> set[tuple[str, int]]:
        """The parameters, and their dimensions, that hold the units."""
        return {(slot.name, slot.dim) for group in self.groups for slot in group.slots}


@dataclass
class Site:
    """A dropout.

    Args:
        what: Its name in the report.
        p: Probability of being dropped.
        reason: Obstacle to any candidate.
        candidates: What can stand for it, the best first.
        calls: The tensors that its calls take, and leaves that are added to what they give.
    """

    what: str
    p: float
    reason: str = ""
    candidates: list[Candidate] = field(default_factory=list)
    calls: list[tuple[Tensor, Tensor]] = field(default_factory=list)


def find_sites(model: nn.Module, example_inputs: Any) -> dict[str, Site]:
    """Return every dropout that is a module, or an argument of one, by its path."""
    sites = dict(_sites(model))
    masked = [path for path, module in model.named_modules() if isinstance(module, MultirateMask)]
    twin = double_copy(model)
    with probing(twin):
        randomize(twin)
        with _watched(twin, {path: site for path, site in sites.items() if not site.reason}):
            recording = record(twin, read_inputs(example_inputs))
        finder = Finder(recording)
        groups = [found for found in map(finder.read, finder.families()) if isinstance(found, UnitGroup)]
        choices = {path: list(_candidates(site, recording, finder, groups)) for path, site in sites.items()}
        trial = _Trial(twin, read_inputs(example_inputs))
        for path, site in sites.items():
            whole = isinstance(twin.get_submodule(path), WHOLE_FEATURES) if site.calls else False
            for each in choices[path]:
                free = not any(within(mask, name) for mask in masked for name, _ in each.places)
                if free and _fits(each, whole) and trial.same(path, each):
                    site.candidates.append(each)
            if not site.candidates:
                site.reason = site.reason or "no layer that makes or reads its units can lose them in its place"
    return sites


def _sites(model: nn.Module) -> Iterator[tuple[str, Site]]:
    for path, module in model.named_modules():
        if isinstance(module, DROPOUTS):
            reason = "" if has_stock_forward(module) else "its class computes something else than torch's dropout"
            reason = "it sets units to a value other than zero" if isinstance(module, NO_ZEROS) else reason
            reason = reason if module.p else "p is 0"
            yield path, Site(f"{type(module).__name__}(p={module.p})", module.p, reason)
        elif isinstance(module, nn.RNNBase | nn.MultiheadAttention) and module.dropout:
            attends = isinstance(module, nn.MultiheadAttention)
            why = ATTENTION if attends else "it is inside the layer: mask its weights with mrreg.mask"
            what = f"{type(module).__name__}(dropout={module.dropout})"
            yield (f"{path}.dropout" if path else "dropout"), Site(what, module.dropout, why)


@contextmanager
def _watched(twin: nn.Module, sites: dict[str, Site]) -> Iterator[None]:
    """Note the calls of dropouts in a forward."""
    handles = []
    for path, site in sites.items():

        def note(_: nn.Module, args: tuple[Tensor, ...], output: Tensor, site: Site = site) -> Tensor:
            made = output.new_zeros(()).expand(output.shape).detach().requires_grad_(True)
            site.calls.append((args[0], made))
            return output + made

        handles.append(twin.get_submodule(path).register_forward_hook(note))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _candidates(site: Site, recording: Recording, finder: Finder, groups: Sequence[UnitGroup]) -> Iterator[Candidate]:
    """Yield what could be absent in the place of what a dropout drops: a group, columns, or rows."""
    read: dict[tuple[str, int], Slot] = {}
    for op in recording.ops:
        for _, made in site.calls:
            if op.columns and finder.influence(op).gradients(None, [made])[0] is not None:
                dim = op.taken_dim if op.taken.dim() == made.dim() else (1 if made.dim() > 3 else -1)
                read |= _slot(op.columns, made.shape[dim])
    if read:
        around = [group for group in groups if not group.keeps_shape]
        inner = [g for g in around if {(s.name, s.dim) for s in g.slots if s.role == "consumer"} == read.keys()]
        for group in inner:
            between = replace(group, kept=kept(group, site.p))
            yield Candidate([between], {group.name: str(group.kind)}, "it lies between layers that share these units")
        yield _single("inputs", "input", list(read.values()), site.p, "its output goes there")
    for taken, _ in site.calls if len(site.calls) == 1 else ():
        for _, op in Influence(recording, taken, -1).used:
            made_rows = _slot(op.rows, taken.shape[op.made_dim])
            for other in op.also if made_rows else ():
                made_rows |= _slot(other, op.rows.size)
            if made_rows:
                yield _single("outputs", "output", list(made_rows.values()), site.p, "its input comes from there")


def _slot(channels: Channels, units: int) -> dict[tuple[str, int], Slot]:
    """Guess where units lie in a dimension: one after another, each with its places (a flattened convolution)."""
    if channels.size % units:
        return {}
    where = torch.arange(channels.start, channels.start + channels.size, device="cpu").view(units, -1)
    return {(channels.name, channels.dim): Slot(channels.name, channels.dim, where, "consumer")}


def _single(kind: Any, word: str, slots: list[Slot], p: float, reason: str) -> Candidate:
    layers = list(dict.fromkeys(slot.name.rpartition(".")[0] for slot in slots))
    units = slots[0].indices.shape[0]
    group = UnitGroup(f"{kind} of {', '.join(layers)}", kind, units, max(units - round(p * units), 1), tuple(slots))
    return Candidate([group], dict.fromkeys(layers, word), reason)


def _fits(candidate: Candidate, whole: bool) -> bool:
    """Tell if the slots of a group agree, and dropout of single features is not taken for that of channels."""
    for group in candidate.groups:
        between = not group.keeps_shape
        single = all(slot.indices.shape[1] == 1 for slot in group.slots if slot.role == "consumer")
        if (between and not (whole or single)) or any(len(s.indices) != group.units for s in group.slots):
            return False
        if group.kept == group.units:
            return False
    return True


class _Trial:
    """Compares a forward in which a dropout drops units with one in which what reads or makes them is zero."""

    def __init__(self, twin: nn.Module, inputs: Inputs) -> None:
        self.twin, self.inputs, self.tensors = twin, inputs, named_tensors(twin)
        self.paths: Sequence[Path] = find_paths(twin, inputs)

    def same(self, path: str, candidate: Candidate) -> bool:
        """Tell if the copy computes the same either way."""
        group = candidate.groups[0]
        absent = torch.rand(group.units, generator=torch.Generator("cpu").manual_seed(0), device="cpu") < 0.5
        slots = [slot for slot in group.slots if slot.role == "consumer"]

        def drop(_: nn.Module, __: object, output: Tensor) -> Tensor:
            dims = [dim for dim in range(1, output.dim()) if output.shape[dim] == group.units]
            shape = [1] * output.dim()
            shape[dims[0] if output.dim() > 3 else dims[-1]] = -1
            return output * (~absent).view(shape)

        handle = self.twin.get_submodule(path).register_forward_hook(drop)
        try:
            dropped = [run(self.twin, self.inputs, each).outputs for each in self.paths]
        except IndexError:  # the units lie along no dimension of what it gives
            return False
        finally:
            handle.remove()
        before = {slot.name: self.tensors[slot.name].detach().clone() for slot in slots}
        with torch.no_grad():
            for slot in slots:
                self.tensors[slot.name].index_fill_(slot.dim, slot.indices[absent].flatten(), 0.0)
        try:
            zeroed = [run(self.twin, self.inputs, each).outputs for each in self.paths]
        finally:
            with torch.no_grad():
                for name, value in before.items():
                    self.tensors[name].copy_(value)
        pairs = [pair for one, two in zip(dropped, zeroed, strict=True) for pair in zip(one, two, strict=True)]
        return all(float((one - two).abs().max()) <= TOLERANCE * max(1.0, float(one.abs().max())) for one, two in pairs)
