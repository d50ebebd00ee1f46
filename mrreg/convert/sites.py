"""The dropouts of a model, and the units that can be absent in the place of what each of them drops.

Gradients in a recorded forward show which products read what a dropout gives, and which make what it takes. The copy
computes the same with these entries at zero as with the units dropped, or they are not used.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, count
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mrreg.masks.groups import Kind, Slot
from mrreg.thinning.build import unfit
from mrreg.thinning.counts import kept
from mrreg.thinning.grouping import Finder
from mrreg.thinning.influence import Influence
from mrreg.thinning.paths import Path
from mrreg.thinning.recorder import Channels, Recording
from mrreg.thinning.report import ThinEntry
from mrreg.thinning.trial import Trial
from mrreg.thinning.twin import randomize, read_inputs

ATTENTION = "it acts on attention probabilities, which have no weight"
UNCALLED = "the forward on example_inputs does not call it"
NOBODY = (
    "no layer reads or makes its units alone; a layer beside it can be masked by hand, before this: "
    'mrreg.mask(model, {layer: p}, structure="input"), or "output"'
)


class Drops(NamedTuple):
    """What a dropout drops with each unit: flat positions in a tensor of a shape that broadcasts over its output."""

    positions: Tensor
    shape: list[int]


@dataclass(eq=False)
class Option:
    """A group of units that can stand for what the dropout at a path drops, in some `of` its calls, by number."""

    path: str
    of: int
    group: ThinEntry
    word: str
    drops: dict[int, Drops] = field(default_factory=dict)

    @property
    def places(self) -> frozenset[tuple[str, int]]:
        """The parameters, and their dimensions, that hold the units."""
        return frozenset((slot.name, slot.dim) for slot in self.group.slots)


@dataclass
class Site:
    """A dropout: its name, the obstacle to anything in its place, and what stands there, for all of its calls."""

    what: str
    p: float
    reason: str = ""
    options: list[Option] = field(default_factory=list)
    calls: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # what they take, leaves added to what they give


def find_choices(
    model: nn.Module, twin: nn.Module, example_inputs: Any, paths: Sequence[Path], sites: dict[str, Site], rescale: bool
) -> None:
    """Find what can stand for dropouts, or the reason why nothing can, in a double copy of a model."""
    randomize(twin)
    sites = {path: each for path, each in sites.items() if not each.reason}
    with ExitStack() as stack:
        for path, site in sites.items():
            hook = twin.get_submodule(path).register_forward_hook(partial(_note, site), with_kwargs=True)
            stack.callback(hook.remove)
        recording = Recording(twin, read_inputs(example_inputs)).run()
    search, inputs = _Search(model, recording), read_inputs(example_inputs)
    found = {path: search.options(path, twin.get_submodule(path), site) for path, site in sites.items()}
    for path, site in sites.items():
        site.reason = site.reason or ("" if found[path] else NOBODY if site.calls else UNCALLED)
    paths = [each for each in paths if not each.shift]  # else zeros in embeddings are none

    def begin(options: Sequence[Option]) -> Trial:
        halves = [replace(each.group, kept=each.group.units // 2) for each in options]
        return Trial(twin, inputs, halves, paths, factor=2.0 if rescale else 1.0)

    fitting = _fitting([each for options in found.values() for each in options], begin)
    for path, site in sites.items():
        by_call = [[each for each in fitting if each.path == path and i in each.drops] for i in range(len(site.calls))]
        if site.calls and all(by_call):
            site.options = list(dict.fromkeys(best for best, *_ in by_call))
        elif tried := ", ".join(f"{each.group.name} ({each.word})" for each in found[path]):
            site.reason = f"zeros in {tried}{', the others rescaled,' * rescale} would do something else"


def _note(site: Site, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> Tensor:
    taken: Tensor = (*args, *kwargs.values())[0]
    site.reason = ATTENTION if "Softmax" in type(taken.grad_fn).__name__ else site.reason
    made = output.new_zeros(()).expand(output.shape).detach().requires_grad_(True)
    site.calls.append((taken.clone(), made))  # code may write to it later
    return output + made


class _Search:
    """Reads in a recording which entries of parameters belong to the units that dropouts drop."""

    def __init__(self, model: nn.Module, recording: Recording) -> None:
        self.model, self.recording, self.finder = model, recording, Finder(recording)
        self.parameters = dict(model.named_parameters())
        self.groups = [group for group in map(self.finder.read, self.finder.families()) if not group.reason]

    def options(self, path: str, dropout: nn.Module, site: Site) -> list[Option]:
        """Return what could stand for a dropout, the best first; the trial has not seen it."""
        found: dict[object, Option] = {}
        for number, (taken, made) in enumerate(site.calls):
            varies = _varying_dims(dropout, made.dim())
            for group, word, drops in (*self._behind(made, varies), *self._before(taken, varies)):
                group = replace(group, kept=kept(group, site.p))
                if reason := unfit(self.model, group):
                    site.reason = reason
                elif not any(self.parameters[s.name].requires_grad for s in group.slots if s.name in self.parameters):
                    site.reason = f"{group.slots[0].name!r} is frozen"
                elif group.kept == group.units:
                    site.reason = f"p = {site.p:g} of {group.units} units is none"
                else:
                    option = Option(path, len(site.calls), group, word)
                    key = word, option.places, *(slot.role for slot in group.slots)
                    found.setdefault(key, option).drops[number] = drops
        return list(found.values())

    def _behind(self, made: Tensor, varies: Sequence[int]) -> Iterator[tuple[ThinEntry, str, Drops]]:
        """Yield the group of units that the products behind a dropout read, and their columns alone."""
        slots: dict[tuple[str, int], Slot] = {}
        drops: list[Drops] = []
        for op in self.recording.ops:
            if op.columns is None or (influence := self.finder.influence(op)).gradients(None, [made])[0] is None:
                continue
            columns = torch.arange(op.columns.size, device="cpu")
            ends = [influence.gradients(columns == i, [made])[0] for i in (0, op.columns.size - 1)]
            found = _units(ends, varies, op.columns.size)
            if found is None:
                return
            drops.append(found)
            slots[op.columns.name, op.columns.dim] = self._slot(op.columns, found.positions)
        if not drops or any(each.shape != drops[0].shape for each in drops):
            return
        for group in self.groups:
            read = {(slot.name, slot.dim): slot for slot in group.slots if slot.role == "consumer"}
            if group.slots[0].role == "producer" and read.keys() == slots.keys():
                place, slot = next(iter(read.items()))
                if set(map(frozenset, slot.indices.tolist())) == set(map(frozenset, slots[place].indices.tolist())):
                    around = Drops(slot.indices - slots[place].indices.min(), drops[0].shape)
                    yield group, str(group.kind), around
        yield _single("inputs", list(slots.values())), "input", drops[0]

    def _before(self, taken: Tensor, varies: Sequence[int]) -> Iterator[tuple[ThinEntry, str, Drops]]:
        """Yield the rows of the products that make the units that a dropout takes: of each of them, and of all."""
        for d in varies:
            influence, size = Influence(self.recording, taken, d), taken.shape[d]
            positions, makers = torch.arange(size, device="cpu").view(-1, 1), list[list[Slot]]()
            for offset, (_, op) in zip(influence.offsets, influence.used, strict=False):
                if op.rows.size == size > 1:
                    ends = [influence.reached(positions[:, 0] == i)[offset : offset + size] for i in (0, size - 1)]
                    if [end.nonzero().flatten().tolist() for end in ends] == [[0], [size - 1]]:
                        makers.append([self._slot(each, positions) for each in (op.rows, *op.also)])
            if makers:
                members = []
                for place, units in self.finder._reached_units(influence, positions.flatten(), size).items():
                    counts = torch.bincount(units.clamp_min(0), minlength=size)
                    if place[0] in self.parameters and units.min() >= 0 and counts.min() == counts.max():
                        members.append(Slot(*place, units.argsort(stable=True).view(size, -1), "consumer"))
                drops = Drops(positions, [size if each == d else 1 for each in range(taken.dim())])
                for slots in makers if len(makers) == 1 else [*makers, list(chain(*makers))]:
                    yield _single("outputs", slots + members), "output", drops
                    if members:  # a normalization would undo the factor of what it reads: that is held, and read whole
                        held = [replace(slot, role="producer") for slot in slots]
                        yield _single("outputs", held + members), "output", drops
                return

    def _slot(self, channels: Channels, positions: Tensor) -> Slot:
        size = self.recording.others[channels.name].shape[channels.dim]
        whole = 0 if channels.size == size else size
        return Slot(channels.name, channels.dim, positions + channels.start, "consumer", whole)


def _units(ends: Sequence[Tensor | None], varies: Sequence[int], size: int) -> Drops | None:
    """Return the columns of each unit that a dropout drops, from what gives a product its first and last columns."""
    one, two = ([] if end is None else [set(at) for at in end.cpu().nonzero().T.tolist()] for end in ends)
    dims = [d for d, (a, b) in enumerate(zip(one, two, strict=False)) if len(a) == len(b) == 1 and a != b]
    sizes = [end.shape[d] for end in ends[:1] if end is not None for d in dims]
    units = [i for i, d in enumerate(dims) if d in varies]
    if prod(sizes) != size or not units or ends[0] is None:
        return None
    columns = torch.arange(size, device="cpu").view(sizes).movedim(units, list(range(len(units))))
    shape = [each if d in dims else 1 for d, each in enumerate(ends[0].shape)]
    return Drops(columns.reshape(prod(sizes[i] for i in units), -1), shape)


def _varying_dims(dropout: nn.Module, dims: int) -> list[int]:
    """Return the dimensions of a tensor along which a dropout drops some positions and keeps others."""
    probe: Any = copy.copy(dropout)
    probe.p, probe.training, probe.inplace = 0.5, True, False
    there = probe(torch.ones([8] * dims, device="cpu")) != 0
    return [d for d in range(dims) if (there != there.narrow(d, 0, 1)).any()]


def _single(kind: Kind, slots: list[Slot]) -> ThinEntry:
    layers = ", ".join(dict.fromkeys(slot.name.rpartition(".")[0] for slot in slots))
    units = len(slots[0].indices)
    return ThinEntry(f"{kind} of {layers}", kind, units, units, tuple(slots))


def _fitting(options: Sequence[Option], begin: Callable[[Sequence[Option]], Trial]) -> list[Option]:
    """Return the options with which the copy computes the same either way: all at once, or by halves.

    Those of one group are tried apart: zeros of one hide what another does.
    """
    if not options or (len({each.group.name for each in options}) == len(options) and _same(options, begin(options))):
        return list(options)
    middle = len(options) // 2
    halves = [options[:middle], options[middle:]] if middle else []
    return [each for half in halves for each in _fitting(half, begin)]


def _same(options: Sequence[Option], trial: Trial) -> bool:
    """Compare dropping units, and multiplying the others by a factor, with doing so where they are made or read."""
    trial.whole()
    for draw, tried in trial.cases:
        with ExitStack() as stack:
            for each in options:
                hook = partial(_drop, each, trial.kept[draw][each.group.name], trial.factor, count())
                stack.callback(trial.twin.get_submodule(each.path).register_forward_hook(hook).remove)
            if trial.difference(draw, tried):
                return False
    return True


def _drop(option: Option, kept: Tensor, factor: float, calls: Iterator[int], *hooked: Any) -> Any:
    """Drop units of what a dropout gives in those of its calls that an option is for, and multiply the others."""
    number, output = next(calls) % option.of, hooked[-1]
    if number not in option.drops:
        return output
    positions, shape = option.drops[number]
    absent = torch.ones(len(positions), dtype=torch.bool, device="cpu").index_fill(0, kept, False)
    present = torch.ones(prod(shape), dtype=output.dtype, device=output.device)
    present[positions[absent].flatten().to(output.device)] = 0
    return output * present.view(shape) * factor
