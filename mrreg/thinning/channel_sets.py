"""Sets of channels that belong together, and the families of weights that they run through."""

from collections.abc import Iterable

Place = tuple[str, int]  # a parameter or buffer, and one of its dimensions
Unit = dict[Place, list[int]]  # positions that belong together


class ChannelSets:
    """Disjoint sets of positions along dimensions of parameters."""

    def __init__(self) -> None:
        self.sizes: dict[Place, int] = {}
        self._base: dict[Place, int] = {}
        self._parent: list[int] = []

    def add(self, place: Place, size: int) -> None:
        """Begin with a set for each position; a place that is known already stays as it is."""
        if place not in self._base:
            self._base[place], self.sizes[place] = len(self._parent), size
            self._parent.extend(range(len(self._parent), len(self._parent) + size))

    def join(self, positions: Iterable[tuple[Place, int]]) -> None:
        """Unite the sets of some positions."""
        roots = [self._root(self._base[place] + position) for place, position in positions]
        for root in roots[1:]:
            self._parent[self._root(root)] = self._root(roots[0])

    def _root(self, node: int) -> int:
        parent = self._parent
        while parent[node] != node:
            parent[node] = node = parent[parent[node]]
        return node

    def families(self) -> list[list[Unit]]:
        """Return the sets, sorted by the places that they share: what shrinks together, if it shrinks."""
        units: dict[int, Unit] = {}
        for place, base in self._base.items():
            for position in range(self.sizes[place]):
                units.setdefault(self._root(base + position), {}).setdefault(place, []).append(position)
        shared = ChannelSets()
        for place in self._base:
            shared.add(place, 1)
        for unit in units.values():
            shared.join((place, 0) for place in unit)
        found: dict[int, list[Unit]] = {}
        for unit in units.values():
            found.setdefault(shared._root(shared._base[next(iter(unit))]), []).append(unit)
        return list(found.values())
