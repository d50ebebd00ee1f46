"""Groups of units, found from which channels reach which, or the reason why some channels form none."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, product

import torch
from torch import Tensor, nn

from mrreg.masks.groups import Kind, Role, Slot
from mrreg.module_utils import owner
from mrreg.thinning.influence import NONE, SEVERAL, ChannelSets, Influence, Place, Position, Unit, merge, spell, touched
from mrreg.thinning.recorder import Channels, MixingOp, Recording
from mrreg.thinning.report import ThinEntry
from mrreg.thinning.twin import Inputs, randomize, state_kept


def find(twin: nn.Module, inputs: Inputs) -> list[ThinEntry]:
    """Run a double copy once and return its groups, in the order of their first producers, and what is none."""
    randomize(twin)
    with state_kept(twin):
        finder = Finder(Recording(twin, inputs).run())
    found: dict[str, ThinEntry] = {}
    for family in finder.families():
        each, (place, where) = finder.read(family), next(iter(family[0].items()))
        names = each.name, f"{place[0]}[{place[1]}]", f"{place[0]}[{place[1]}, {where[0]}:]"
        name = next((name for name in names if name not in found), names[-1])
        found[name] = replace(each, name=name)
    return list(found.values())


class Finder:
    """Connects the channels of a recording and reads groups from what is connected."""

    def __init__(self, recording: Recording) -> None:
        self.recording, self.sets = recording, ChannelSets()
        self.rows: dict[Place, int] = {}  # with the number of the first operation that has its output channels there
        self.also: set[Place] = set()
        self.shared: set[Position] = set()  # positions of output channels that reach all units of a reader
        self.columns: dict[Place, list[MixingOp]] = {}
        self._influences: dict[int, Influence] = {}
        for number, op in enumerate(recording.ops):
            self._add(number, op)
        for op in recording.ops:
            if op.columns is not None:
                influence = self.influence(op)
                for each in influence.ranges():
                    taken = [_position(op.columns, i) for i in range(each.start, each.stop)]
                    self.sets.join(taken + [influence.source(i) for i in sorted(each.sources)])
                self.shared.update(map(influence.source, influence.shared))
        self.direct = [{number for number, _ in self.influence(op).used} for op in recording.ops]
        self.before: list[set[int]] = []  # numbers of the operations that each one depends on
        for numbers in self.direct:
            self.before.append(numbers.union(*(self.before[number] for number in numbers)))
        outputs = [Influence(recording, output, -1) for output in recording.outputs]
        reached = [(each, i) for each in outputs for i in each.reached(None).nonzero().flatten().tolist()]
        self.read_by_output = {each.source(i) for each, i in reached}  # with no other product between
        last = {number for each in outputs for number, _ in each.used}
        compared = last.union(*(self.before[number] for number in last))
        self.compared = {recording.ops[number] for number in compared}  # on which something that is returned depends
        self.skips = set(self._skips())
        self._members_of: dict[Position, tuple[str, int]] = {}  # positions that a group has, and which

    def _add(self, number: int, op: MixingOp) -> None:
        for each in (op.rows, *op.also, *([op.columns] if op.columns else [])):
            self.sets.add(_place(each), self.recording.others[each.name].shape[each.dim])
        for i in range(op.rows.size):
            self.sets.join(_position(each, i) for each in (op.rows, *op.also))
        self.rows.setdefault(_place(op.rows), number)
        self.also.update(map(_place, op.also))
        if op.columns is not None:
            self.columns.setdefault(_place(op.columns), []).append(op)

    def influence(self, op: MixingOp) -> Influence:
        """The influence on an operation's input, once for all operations that take the same tensor."""
        if id(op.taken) not in self._influences:
            self._influences[id(op.taken)] = Influence(self.recording, op.taken, op.taken_dim)
        return self._influences[id(op.taken)]

    def _skips(self) -> Iterator[tuple[Place, Place, Place]]:
        """Yield places of channels that are added to what was computed from them, or from what they were.

        With them come columns that have read them (their own, where a shortcut has a product) and the rows added.
        """
        ops, before = self.recording.ops, self.before
        for pair in self.recording.sums:
            left, right = ([number for number, _ in Influence(self.recording, side, -1).used] for side in pair)
            for one, two in chain(product(left, right), product(right, left)):
                own, other = _place(ops[one].rows), _place(ops[two].rows)
                if one in before[two]:
                    readers = (number for number in before[two] | {two} if one in self.direct[number])
                    yield from ((own, _place(columns), other) for each in readers if (columns := ops[each].columns))
                elif before[one] and before[one] < before[two] and self._bends(ops[two]):
                    yield own, own, other

    def _bends(self, op: MixingOp) -> bool:
        """Tell if an operation reads others through a norm or an activation: then their slopes depend on something."""
        influence = self.influence(op)
        grads = influence.gradients(None, [each.made for _, each in influence.used], create_graph=True)
        return any(grad is not None and grad.requires_grad for grad in grads)

    def families(self) -> list[list[Unit]]:
        """Connected channels, sorted by the places they run through; in the order in which those are first made."""
        last = len(self.recording.ops)
        return sorted(self.sets.families(), key=lambda units: min(self.rows.get(p, last) for u in units for p in u))

    def read(self, units: list[Unit]) -> ThinEntry:
        """Turn connected channels into a group, or say why they are none."""
        places = list(dict.fromkeys(place for unit in units for place in unit))
        producers = sorted((p for p in places if p in self.rows), key=lambda p: self.rows[p])
        consumers = [p for p in places if p in self.columns]
        first = (producers or consumers)[0][0]
        name = owner(first) or first
        members: dict[Place, list[list[int]]] = {}
        reason = self._obstacle(units, producers, consumers)
        if not reason:
            units.sort(key=lambda unit: unit[(producers or consumers)[0]])
            members, reason = self._members(name, units, consumers)
        members |= {p: [unit[p] for unit in units] for p in places if p in self.also and p not in self.rows}
        slots = [self._slot(p, [unit[p] for unit in units], "producer") for p in producers]
        slots += [self._slot(p, indices, "member") for p, indices in members.items()]
        slots += [self._slot(p, [unit[p] for unit in units], "consumer") for p in consumers]
        kind: Kind = "none" if reason else self._kind(units[0], producers, consumers)
        return ThinEntry(name, kind, len(units), len(units), tuple(slots), reason=reason)

    def _slot(self, place: Place, indices: Sequence[Sequence[int]], role: Role) -> Slot:
        where, size = torch.tensor(indices, device="cpu"), self.recording.others[place[0]].shape[place[1]]
        return Slot(*place, where, role, 0 if where.numel() == size else size)

    def _obstacle(self, units: list[Unit], producers: list[Place], consumers: list[Place]) -> str:
        """Return the obstacle that keeps connected channels from being a group; nothing if they look like one."""
        if both := [name for name, dim in producers if (name, dim) in self.columns]:
            return f"{both[0]} has two roles: it makes these channels and reads them (tied weights)"
        if not producers and not all(self._reads_input(units, place) for place in consumers):
            return "nothing that can be read makes these channels"
        if any((place, i) in self.read_by_output for unit in units for place in producers for i in unit[place]):
            return "they reach the model's output"
        shared = any((place, i) in self.shared for unit in units for place in producers for i in unit[place])
        if not consumers and not shared:
            return "nothing that can be read takes these channels"
        if consumers and not self.compared.intersection(op for place in consumers for op in self.columns[place]):
            return "no tensor that the forward returns depends on them"
        if not shared and len(units) < 2 and all(len(where) == 1 for where in units[0].values()):
            return "it is one unit alone"
        mixed = "what follows mixes all of them: a normalization over them, or an operation that cannot be read"
        return mixed if shared or len(units) < 2 else ""

    def _reads_input(self, units: list[Unit], place: Place) -> bool:
        """Tell if columns that no other operation reaches read an input of the model."""
        taken = [(self.influence(op), _numbered(units, place, op) >= 0) for op in self.columns[place]]
        grads = [influence.gradients(columns, self.recording.inputs) for influence, columns in taken]
        return all(any(grad is not None and grad.any() for grad in each) for each in grads)

    def _kind(self, unit: Unit, producers: list[Place], consumers: list[Place]) -> Kind:
        if not producers:
            return "inputs"
        for made, read, added in self.skips:
            if unit.keys() >= {made, read, added} and len(unit[made]) == len(unit[read]):
                return "stream"
        makers = [self.recording.ops[self.rows[place]] for place in producers]
        products = all(op.columns is not None for op in makers)  # or it is the width of an embedding
        if products and not any(self._bends(op) for place in consumers for op in self.columns[place]):
            return "rank"
        kinds = {op.kind for op in makers}
        if "channels" in kinds:
            return "channels"
        return "heads" if "heads" in kinds or len(unit[consumers[0]]) > 1 else "hidden"

    def _members(
        self, name: str, units: list[Unit], consumers: list[Place]
    ) -> tuple[dict[Place, list[list[int]]], str]:
        """Find the other parameters and buffers that have a position for each unit: they shrink with it."""
        taken = {name for name, _ in units[0]}
        found: dict[Place, Tensor] = {}  # for each position the unit that it reaches, or NONE, or SEVERAL
        for place in consumers:
            for op in self.columns[place]:
                of_column = _numbered(units, place, op)
                for other, reached in self._reached_units(self.influence(op), of_column, len(units)).items():
                    if other[0] in taken:
                        return {}, f"{other[0]} is also used by an operation that cannot be read"
                    found[other] = merge(found[other], reached) if other in found else reached
        members: dict[Place, list[list[int]]] = {}
        for other, reached in found.items():
            counts = torch.bincount(reached[reached >= 0], minlength=len(units))
            if reached.min() > SEVERAL and counts.min() == counts.max() > 0:
                members[other] = reached.argsort(stable=True)[(reached < 0).sum() :].reshape(len(units), -1).tolist()
        unit = name, next(iter(units[0].values()))[0]
        for position in ((other, i) for other, indices in members.items() for each in indices for i in each):
            if self._members_of.setdefault(position, unit) != unit:
                return {}, f"{position[0][0]} has the same position for units of {self._members_of[position][0]}"
        return members, ""

    def _reached_units(self, influence: Influence, of_column: Tensor, units: int) -> dict[Place, Tensor]:
        """Return the unit that each position along each dimension of the other tensors reaches, or NONE or SEVERAL.

        One pass for each binary digit of units' numbers, and each of its values, shows which positions reach such.
        """
        others = self.recording.others
        whole = influence.gradients(None, list(others.values()))
        tensors = {name: others[name] for name, grad in zip(others, whole, strict=True) if grad is not None}
        found = {
            (name, dim): torch.zeros(size, dtype=torch.long, device="cpu")
            for name, t in tensors.items()
            for dim, size in enumerate(t.shape)
        }
        for digit in range(max((units - 1).bit_length(), 1)):
            passes = [
                influence.gradients((of_column >= 0) & ((of_column >> digit) & 1 == value), list(tensors.values()))
                for value in (0, 1)
            ]
            for name, zero, one in zip(tensors, *passes, strict=True):
                for dim in range(tensors[name].dim()):
                    found[name, dim] = spell(found[name, dim], digit, touched(zero, dim), touched(one, dim))
        return found


def _numbered(units: list[Unit], place: Place, op: MixingOp) -> Tensor:
    """Return the number of the unit that each column of an operation belongs to, or NONE."""
    assert op.columns is not None
    number = {position: i for i, unit in enumerate(units) for position in unit[place]}
    return torch.tensor([number.get(op.columns.start + i, NONE) for i in range(op.columns.size)], device="cpu")


def _place(channels: Channels) -> Place:
    return channels.name, channels.dim


def _position(channels: Channels, i: int) -> Position:
    return _place(channels), channels.start + i
