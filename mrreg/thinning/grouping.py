"""Groups of units, found from which channels reach which, or the reason why some channels form none."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from mrreg.masks.groups import Kind, Role, Slot, UnitGroup
from mrreg.thinning.channel_sets import ChannelSets, Place, Unit
from mrreg.thinning.double_copy import Inputs, randomize
from mrreg.thinning.influence import Influence
from mrreg.thinning.recorder import Channels, MixingOp, Recording, record


@dataclass(frozen=True)
class Refusal:
    """Channels that cannot be dropped, where they lie, and why they cannot."""

    name: str
    places: list[Place]
    units: int
    reason: str


def find(twin: nn.Module, inputs: Inputs, tick: Callable[[str], None]) -> tuple[list[UnitGroup], list[Refusal]]:
    """Run a double copy once and return its groups, in the order of their first producers, and what is none.

    Args:
        twin: A float64 copy with random weights.
        inputs: Arguments of its forward; afterwards they belong to the graph of that forward.
        tick: Is told what is looked at.
    """
    tick("following a forward")
    randomize(twin)
    recording = record(twin, inputs)
    finder = Finder(recording, tick)
    groups: list[UnitGroup] = []
    refusals: list[Refusal] = []
    names: set[str] = set()
    for family in finder.families():
        found = finder.read(family)
        tick(f"looking at {found.name}")
        if found.name in names:
            name, dim = found.places[0] if isinstance(found, Refusal) else (found.slots[0].name, found.slots[0].dim)
            found = replace(found, name=f"{name}[{dim}]")
        names.add(found.name)
        if isinstance(found, UnitGroup):
            groups.append(found)
        else:
            refusals.append(found)
    for buffer in twin.buffers():
        buffer.requires_grad_(False)
    return groups, refusals


class Finder:
    """Connects the channels of a recording and reads groups from what is connected.

    Args:
        recording: A forward of a double copy.
        tick: Is told what is looked at.
    """

    def __init__(
        self,
        recording: Recording,
        tick: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.recording, self.sets = recording, ChannelSets()
        self.rows: dict[Place, int] = {}  # with the number of the first operation that has its output channels there
        self.shifts: set[Place] = set()
        self.columns: dict[Place, list[MixingOp]] = {}
        self._influences: dict[int, Influence] = {}
        for number, op in enumerate(recording.ops):
            self._add(number, op)
        for op in recording.ops:
            if op.columns is not None:
                tick(f"looking at {op.columns.name}")
                self._connect(op, op.columns)
        self.read_by_output = self._reached_by_output()
        self.stream = self._residual()

    def _add(self, number: int, op: MixingOp) -> None:
        self._place(op.rows)
        self.rows.setdefault(_place(op.rows), number)
        if op.bias is not None:
            self._place(op.bias)
            self.shifts.add(_place(op.bias))
            for i in range(op.rows.size):
                self.sets.join([_position(op.rows, i), _position(op.bias, i)])
        if op.columns is not None:
            self._place(op.columns)
            self.columns.setdefault(_place(op.columns), []).append(op)

    def _place(self, channels: Channels) -> None:
        self.sets.add(_place(channels), self.recording.others[channels.name].shape[channels.dim])

    def influence(self, op: MixingOp) -> Influence:
        """The influence on an operation's input, once for all operations that take the same tensor."""
        if id(op.taken) not in self._influences:
            self._influences[id(op.taken)] = Influence(self.recording, op.taken, op.taken_dim)
        return self._influences[id(op.taken)]

    def _connect(self, op: MixingOp, columns: Channels) -> None:
        influence = self.influence(op)
        for block in influence.blocks():
            taken = [_position(columns, i) for i in range(block.start, block.stop)]
            made = [(number, i) for number, i in map(influence.source, sorted(block.sources))]
            self.sets.join(taken + [_position(self.recording.ops[number].rows, i) for number, i in made])

    def _reached_by_output(self) -> set[tuple[Place, int]]:
        """Positions of output channels that reach the model's output without another product between."""
        found = set()
        for output in self.recording.outputs:
            influence = Influence(self.recording, output, -1)
            for number, i in map(influence.source, influence.reached(None).nonzero().flatten().tolist()):
                found.add(_position(self.recording.ops[number].rows, i))
        return found

    def _residual(self) -> set[Place]:
        """Places of output channels in a sum of which one part has gone through more operations than the other."""
        ops = self.recording.ops
        before: list[set[int]] = []  # numbers of the operations that each one depends on
        for op in ops:
            direct = {number for number, _ in self.influence(op).used}
            before.append(direct.union(*(before[number] for number in direct)))
        found: set[Place] = set()
        for one, two in self.recording.sums:
            left, right = ({number for number, _ in Influence(self.recording, side, -1).used} for side in (one, two))
            if any(_later(a, b, before) or _later(b, a, before) for a in left for b in right):
                found |= {_place(ops[number].rows) for number in left | right}
        return found

    def families(self) -> list[list[Unit]]:
        """Connected channels, sorted by the places they run through; in the order in which those are first made."""
        last = len(self.recording.ops)
        return sorted(self.sets.families(), key=lambda units: min(self.rows.get(p, last) for u in units for p in u))

    def read(self, units: list[Unit]) -> UnitGroup | Refusal:
        """Turn connected channels into a group, or say why they are none."""
        places = list(dict.fromkeys(place for unit in units for place in unit))
        producers = sorted((p for p in places if p in self.rows), key=lambda p: self.rows[p])
        consumers = [p for p in places if p in self.columns]
        name = (producers or consumers)[0][0].rpartition(".")[0]
        members: dict[Place, list[list[int]]] = {}
        reason = self._obstacle(units, places, producers, consumers)
        if not reason:
            units.sort(key=lambda unit: unit[(producers or consumers)[0]])
            members, reason = self._members(units, consumers)
        if reason:
            return Refusal(name, places, len(units), reason)
        members = {p: [unit[p] for unit in units] for p in places if p in self.shifts} | members
        slots = [_slot(p, [unit[p] for unit in units], "producer") for p in producers]
        slots += [_slot(p, indices, "member") for p, indices in members.items()]
        slots += [_slot(p, [unit[p] for unit in units], "consumer") for p in consumers]
        return UnitGroup(name, self._kind(producers, units[0][consumers[0]]), len(units), len(units), tuple(slots))

    def _obstacle(self, units: list[Unit], places: list[Place], producers: list[Place], consumers: list[Place]) -> str:
        """Return the obstacle that keeps connected channels from being a group; nothing if they look like one."""
        if both := [name for name, dim in producers if (name, dim) in self.columns]:
            return f"{both[0]} has two roles: it makes these channels and reads them (tied weights)"
        if not producers and not all(self._only_inputs(place) for place in consumers):
            return "nothing that can be read makes these channels"
        if any((place, i) in self.read_by_output for unit in units for place in producers for i in unit.get(place, ())):
            return "they reach the model's output"
        if not consumers:
            return "nothing that can be read takes these channels"
        if len(units) < 2:
            return "what follows mixes all of them: a normalization over them, or an operation that cannot be read"
        if any(
            {p: len(unit.get(p, ())) for p in places} != {p: len(units[0].get(p, ())) for p in places} for unit in units
        ):
            return "the units differ in size or in where they lie"
        return ""

    def _only_inputs(self, place: Place) -> bool:
        return all(not self.influence(op).used and self.influence(op).reads_input for op in self.columns[place])

    def _kind(self, producers: list[Place], consumed: list[int]) -> Kind:
        if not producers:
            return "inputs"
        if any(place in self.stream for place in producers):
            return "stream"
        if any(self.recording.others[name].dim() > 2 for name, _ in producers):
            return "channels"
        return "heads" if len(consumed) > 1 else "hidden"

    def _members(self, units: list[Unit], consumers: list[Place]) -> tuple[dict[Place, list[list[int]]], str]:
        """Find the other parameters and buffers that have a position for each unit: they shrink with it."""
        taken = {name for unit in units[:1] for name, _ in unit}
        found: dict[Place, Tensor] = {}  # for each position the unit that it reaches, or NONE, or SEVERAL
        for place in consumers:
            number = {position: i for i, unit in enumerate(units) for position in unit[place]}
            for op in self.columns[place]:
                assert op.columns is not None
                of_column = torch.tensor([number[op.columns.start + i] for i in range(op.columns.size)])
                for other, reached in self._reached_units(self.influence(op), of_column, len(units)).items():
                    if other[0] in taken:
                        return {}, f"{other[0]} is also used by an operation that cannot be read"
                    found[other] = _merge(found[other], reached) if other in found else reached
        members: dict[Place, list[list[int]]] = {}
        for other, reached in found.items():
            counts = torch.bincount(reached.clamp_min(0), minlength=len(units))
            if reached.min() >= 0 and counts.min() == counts.max():
                members[other] = reached.argsort(stable=True).reshape(len(units), -1).tolist()
        return members, ""

    def _reached_units(self, influence: Influence, of_column: Tensor, units: int) -> dict[Place, Tensor]:
        """Return the unit that each position along each dimension of the other tensors reaches, or NONE or SEVERAL.

        Each unit has a binary number. One pass for each digit and each of its values shows which positions reach units
        with that digit: a position that reaches one unit alone has spelled its number.
        """
        whole = influence.gradients(None, list(self.recording.others.values()))
        tensors = {
            name: t for (name, t), grad in zip(self.recording.others.items(), whole, strict=True) if grad is not None
        }
        found = {
            (name, dim): torch.zeros(size, dtype=torch.long)
            for name, t in tensors.items()
            for dim, size in enumerate(t.shape)
        }
        for digit in range(max((units - 1).bit_length(), 1)):
            passes = [
                influence.gradients((of_column >> digit) & 1 == value, list(tensors.values())) for value in (0, 1)
            ]
            for name, zero, one in zip(tensors, *passes, strict=True):
                for dim in range(tensors[name].dim()):
                    found[name, dim] = _spell(found[name, dim], digit, _touched(zero, dim), _touched(one, dim))
        return found


def _later(one: int, two: int, before: Sequence[set[int]]) -> bool:
    """Tell if an operation depends on another one, or on all that the other depends on and more."""
    return one in before[two] or bool(before[one] and before[one] < before[two])


NONE, SEVERAL = -1, -2


def _spell(numbers: Tensor, digit: int, zero: Tensor, one: Tensor) -> Tensor:
    """Add a binary digit that was seen as zero, as one, as neither or as both; what is not one number stays so."""
    spelled = (numbers + (one.long() << digit)).masked_fill(~zero & ~one, NONE).masked_fill(zero & one, SEVERAL)
    return torch.where(numbers < 0, numbers, spelled)


def _merge(one: Tensor, two: Tensor) -> Tensor:
    """Merge what positions reach through either of two consumers."""
    both = torch.where(one == NONE, two, one)
    return both.masked_fill((two != NONE) & (both != two), SEVERAL)


def _touched(grad: Tensor | None, dim: int) -> Tensor:
    """Tell for each position along a dimension if a gradient is not zero there."""
    assert grad is not None
    others = [d for d in range(grad.dim()) if d != dim]
    return (grad.ne(0).sum(others) > 0 if others else grad.ne(0)).cpu()


def _place(channels: Channels) -> Place:
    return channels.name, channels.dim


def _position(channels: Channels, i: int) -> tuple[Place, int]:
    return _place(channels), channels.start + i


def _slot(place: Place, indices: Sequence[Sequence[int]], role: Role) -> Slot:
    return Slot(place[0], place[1], torch.tensor(indices), role)
