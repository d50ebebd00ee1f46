"""Find the output channels of earlier operations that reach each input channel of a later one."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, product
from typing import NamedTuple

import torch
from torch import Tensor

from mrreg.thinning.recorder import Recording

Place = tuple[str, int]  # a parameter or buffer, and one of its dimensions
Position = tuple[Place, int]
Unit = dict[Place, list[int]]  # positions that belong together


class ChannelRange(NamedTuple):
    """Neighbouring input channels, up to `stop`, and all output channels that reach one of them."""

    start: int
    stop: int
    sources: frozenset[int]

    def parts(self) -> list["ChannelRange"]:
        """Return its halves, its first channel and its last one."""
        start, stop, middle = self.start, self.stop, (self.start + self.stop) // 2
        bounds = (start, middle), (middle, stop), (start, start + 1), (stop - 1, stop)
        return [ChannelRange(*each, self.sources) for each in bounds]


class Influence:
    """Reads the cut graph backwards: gradients of some channels of a tensor say which output channels reach them."""

    def __init__(self, recording: Recording, taken: Tensor, dim: int) -> None:
        self.taken, self.dim, self.size = taken, dim, (taken.shape or (1,))[dim]
        dtype = taken.dtype if taken.requires_grad else torch.get_default_dtype()
        self.seed = torch.rand(taken.shape, device=taken.device, dtype=dtype) + 0.5
        grads = self.gradients(None, [op.made for op in recording.ops])
        self.used = [(i, op) for i, op in enumerate(recording.ops) if grads[i] is not None]
        self.offsets = [0, *accumulate(op.made.shape[op.made_dim] for _, op in self.used)]

    def gradients(
        self, columns: Tensor | None, targets: Sequence[Tensor], create_graph: bool = False
    ) -> list[Tensor | None]:
        """Gradients of a random sum over some channels (or all), with respect to the targets."""
        if not (self.taken.requires_grad and targets):
            return [None] * len(targets)
        seed = self.seed
        if columns is not None:
            shape = [1] * seed.dim()
            shape[self.dim] = -1
            seed = seed * columns.to(seed).reshape(shape)
        options: dict[str, bool] = {"retain_graph": True, "allow_unused": True, "create_graph": create_graph}
        return list(torch.autograd.grad([self.taken], targets, [seed], **options))

    def reached(self, columns: Tensor | None) -> Tensor:
        """Tell for every output channel of the used operations, one after another, if it reaches one of the columns."""
        grads = self.gradients(columns, [op.made for _, op in self.used])
        made = [(grad, op.made.shape, op.made_dim) for grad, (_, op) in zip(grads, self.used, strict=True)]
        parts = [torch.zeros(s[d], dtype=torch.bool, device="cpu") if g is None else touched(g, d) for g, s, d in made]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.bool, device="cpu")

    def source(self, flat: int) -> Position:
        """Turn a number among all used output channels into the position of one in its weight."""
        number = bisect_right(self.offsets, flat) - 1
        rows = self.used[number][1].rows
        return (rows.name, rows.dim), rows.start + flat - self.offsets[number]

    def ranges(self) -> list[ChannelRange]:
        """Split the input channels into ranges that belong to one unit each, halving them while that shows more.

        Where the halves have a common source, and so have the first and the last channel, it is one unit (a head).
        What the first and the last channel, or all ranges, have in common is `shared`, and of no unit: keys of
        multi-query attention, a gate of all channels, all that a normalization gives.
        """
        whole = ChannelRange(0, self.size, _members(self.reached(None)))
        first, last = self._narrow(whole.parts()[2:])
        own = whole.sources - (first.sources & last.sources)
        self.shared = whole.sources - own if own else frozenset()
        done: list[ChannelRange] = []
        pending = [whole._replace(sources=own or whole.sources)]
        while pending:
            done += [each for each in pending if each.sources and each.stop - each.start == 1]
            pending = [each for each in pending if each.sources and each.stop - each.start > 1]
            parts = self._narrow([part for each in pending for part in each.parts()])
            units, pending = pending, []
            for each, one, two, first, last in zip(units, *(parts[i::4] for i in range(4)), strict=True):
                is_unit = one.sources & two.sources and first.sources & last.sources
                (done if is_unit else pending).extend([each] if is_unit else [one, two])
        common = frozenset.intersection(*(each.sources for each in done)) if len(done) > 1 else frozenset()
        self.shared |= common
        return [each._replace(sources=each.sources - common) for each in done]

    def _narrow(self, ranges: Sequence[ChannelRange]) -> list[ChannelRange]:
        """Leave each range the sources that really reach it; ranges without common sources share a pass."""
        results: dict[int, ChannelRange] = {}
        for members in _compatible(ranges):
            columns = torch.zeros(self.size, dtype=torch.bool, device="cpu")
            for i in members:
                columns[ranges[i].start : ranges[i].stop] = True
            reached = _members(self.reached(columns))
            for i in members:
                results[i] = ranges[i]._replace(sources=ranges[i].sources & reached)
        return [results[i] for i in range(len(ranges))]


def _members(mask: Tensor) -> frozenset[int]:
    return frozenset(mask.nonzero().flatten().tolist())


def _compatible(ranges: Sequence[ChannelRange]) -> list[list[int]]:
    """Sort ranges, by number, into few lists in which no two have a source in common."""
    colours: list[tuple[set[int], list[int]]] = []
    for i, each in enumerate(ranges):
        fitting = next((colour for colour in colours if colour[0].isdisjoint(each.sources)), None)
        if fitting is None:
            fitting = set(), []
            colours.append(fitting)
        fitting[0].update(each.sources)
        fitting[1].append(i)
    return [members for _, members in colours]


class ChannelSets:
    """Disjoint sets of positions along dimensions of parameters."""

    def __init__(self) -> None:
        self._parent: dict[Position, Position] = {}

    def add(self, place: Place, size: int) -> None:
        """Begin with a set for each position, unless it is known already."""
        for each in product([place], range(size)):
            self._parent.setdefault(each, each)

    def join(self, positions: Iterable[Position]) -> None:
        """Unite the sets of some positions."""
        first, *others = map(self._root, positions)
        for each in others:
            self._parent[self._root(each)] = self._root(first)

    def _root(self, node: Position) -> Position:
        parent = self._parent
        while parent[node] != node:
            parent[node] = node = parent[parent[node]]
        return node

    def families(self) -> list[list[Unit]]:
        """Return the sets, sorted by the places that they run through and the number of positions in each."""
        units: dict[Position, Unit] = {}
        for place, position in self._parent:
            units.setdefault(self._root((place, position)), {}).setdefault(place, []).append(position)
        found: dict[frozenset[tuple[Place, int]], list[Unit]] = {}
        for unit in units.values():
            found.setdefault(frozenset((place, len(where)) for place, where in unit.items()), []).append(unit)
        return list(found.values())


NONE, SEVERAL = -1, -2


def spell(numbers: Tensor, digit: int, zero: Tensor, one: Tensor) -> Tensor:
    """Add a binary digit that was seen as zero, as one, as neither or as both; what is not one number stays so."""
    spelled = (numbers + (one.long() << digit)).masked_fill(~zero & ~one, NONE).masked_fill(zero & one, SEVERAL)
    return torch.where(numbers < 0, numbers, spelled)


def merge(one: Tensor, two: Tensor) -> Tensor:
    """Merge what positions reach through either of two consumers."""
    both = torch.where(one == NONE, two, one)
    return both.masked_fill((two != NONE) & (both != two), SEVERAL)


def touched(grad: Tensor | None, dim: int) -> Tensor:
    """Tell for each position along a dimension if a gradient is not zero there."""
    assert grad is not None
    others = [d for d in range(grad.dim()) if d != dim % grad.dim()]
    return (grad.ne(0).sum(others) > 0 if others else grad.ne(0)).cpu()  # a sum over no dimensions is one over all
